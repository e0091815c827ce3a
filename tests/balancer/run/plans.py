"""Small plans of random costs, for the tests of a local loop's parts."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.shapes import Sizing
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.run.ahead import LoopCosts, PlanFeed, PlannedStep
from counterpoise.balancer.run.steps import plain_contents

RESOURCES = ("tokens",)
START = EpochPosition(0, 0, 0, 0, "")


def config(**changes: Any) -> PlanConfig:
    """Return a plan's configuration."""
    given: dict[str, Any] = {
        "ranks": 2, "samples_per_step": 6, "accumulate": "auto", "resources": RESOURCES,
        "budgets": (40,), "grouping": "balanced",
    }  # fmt: skip
    return PlanConfig(**{**given, **changes})


def costs_of(values: Sequence[int]) -> LoopCosts:
    """Return costs that are all known."""
    costs = LoopCosts(len(values), RESOURCES)
    costs.store(np.arange(len(values)), np.array(values, np.int64)[:, None])
    return costs


def feed(plan: PlanConfig, costs: LoopCosts, at: EpochPosition = START, epoch: int = 0) -> PlanFeed:
    """Return the feed of an epoch."""
    order = permutation(len(costs), plan.seed, epoch, shuffle=True)
    return PlanFeed(epoch, order, make_planner(plan), costs, at)


def take(source: PlanFeed) -> list[PlannedStep]:
    """Return all steps of a feed whose costs are known."""
    found: list[PlannedStep] = []
    while not source.is_over:
        steps = source.plan()
        assert steps is not None
        found += steps
    return found


def seen(step: PlannedStep) -> Any:
    """Return what two equal steps have in common."""
    return step.number, step.after, step.batch, step.refused


def describe(plan: PlanConfig, played: tuple[int, ...] = (0, 1)) -> Any:
    """Return what describes the contents of a step."""
    return partial(
        plain_contents, played=played, label=-1, sizing=Sizing(),
        may_be_empty=plan.empty_microbatches, has_spares=plan.spares,
    )  # fmt: skip


values = st.lists(st.integers(0, 60), min_size=2, max_size=60)
plans = st.builds(
    config,
    ranks=st.integers(1, 2),
    samples_per_step=st.integers(2, 12),
    mode=st.sampled_from(["exact", "window", "epoch"]),
    oversize=st.sampled_from(["alone", "refuse"]),
    drop_last=st.booleans(),
)
