"""How long ranks wait for each other in a step of the plan: planned, delivered, in random order.

Counted from the costs that the plan was made of, not timed, by the model that `analyze` forecasts
with: ranks wait for the slowest in the encoder and in the language model of every microbatch, or
once a step where Balance(waits="step") says so. Random order deals the same samples out in the
order in which they came: as many of them to each microbatch.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import ENCODER
from ...balancer.planning.problem.work import padded_loads, resource_times
from .families import DELIVERED, FORECAST, RANDOM


class StepWork(NamedTuple):
    """A step's time in a unit of its own: until its slowest ranks are done, and a rank's work.

    by_rank (ranks,): the work of each; the mean of it is `work`.
    """

    time: int
    work: float
    by_rank: Int64


@lru_cache(maxsize=8)
def _work_of(config: PlanConfig) -> PlanConfig:
    """Return the configuration with the resources that are work; each is checked as it is made."""
    return config.only(config.balanced_columns)


def step_times(plan: Any, holes: Iterable[int], config: PlanConfig) -> dict[str, StepWork]:
    """Return a step's times by kind, in one unit: a PlannedStep, and the ordinals of its holes.

    A step holds nothing in its holes but for FORECAST. What buckets add is not in it.
    """
    ranks = plan.batch.ranks
    # the k-th microbatches of all ranks are side by side
    cells = [rank[k].ordinals for k in range(plan.microbatches) for rank in ranks]
    sizes = [len(ordinals) for ordinals in cells]
    ordinals = np.fromiter(chain.from_iterable(cells), np.int64, sum(sizes))
    planned = np.repeat(np.arange(len(cells)), sizes)
    only = _work_of(config)
    costs = config.sizing.rounded(plan.costs[ordinals - plan.start])
    times = resource_times(only, costs[:, config.balanced_columns])
    is_hole = np.isin(ordinals, np.array(list(holes), np.int64))
    dealt = np.full(len(ordinals), -1)
    came = np.argsort(ordinals)
    came = came[~is_hole[came]]
    dealt[came] = np.arange(len(came)) * len(cells) // max(1, len(came))
    groups = {FORECAST: planned, DELIVERED: np.where(is_hole, -1, planned), RANDOM: dealt}
    encodes = np.array([name in ENCODER for name in only.resources])
    found = {}
    for kind, group_of in groups.items():
        loads = padded_loads(times, group_of, len(cells), only.padded_columns)
        parts = [loads[:, own].sum(axis=1).reshape(-1, len(ranks)) for own in (encodes, ~encodes)]
        by_rank = (parts[0] + parts[1]).sum(axis=0)
        slowest = by_rank[None] if config.waits == "step" else np.concatenate(parts)
        time = int(slowest.max(axis=1).sum())
        found[kind] = StepWork(time, float(by_rank.mean()), by_rank)
    return found
