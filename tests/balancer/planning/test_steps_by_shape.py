"""One shape a microbatch: random plans, what they hold, and which of them contradict themselves."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer import Balance, PlanConfig, Shapes, Window, make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch

BY_SHAPE = Shapes(bucket_by="shape")
RESOURCES = ("shape", "pixels")


def plan_epoch(
    config: PlanConfig, costs: np.ndarray, epoch: int = 0
) -> tuple[list[GlobalBatch], list[int], int]:
    """All steps of an epoch, the samples over budget, and how many others are in none."""
    planner, batches, over, left_out, start = make_planner(config), [], [], 0, 0
    while start < len(costs):
        rows = costs[start : start + planner.window_samples]
        last = start + len(rows) == len(costs)
        planned = planner.plan(Window(epoch, len(batches), start, rows, last))
        assert planned.consumed > 0
        batches += planned.batches
        over += planned.oversize
        left_out += planned.left_out
        start += planned.consumed
    return batches, over, left_out


def draw_costs(samples: int, shapes: int, seed: int, varies: bool) -> np.ndarray:
    """Samples of shapes that are unlike in number and in work; varies: also within a shape."""
    draw = np.random.default_rng(seed)
    keys = draw.choice(shapes, samples, p=draw.dirichlet(np.full(shapes, 0.5)))
    pixels = draw.integers(1, 40, shapes)[keys]
    return np.stack([keys * 1000, pixels + varies * draw.integers(0, 9, samples)], axis=1)


def cells(batches: list[GlobalBatch]) -> list[list[int]]:
    return [list(m.ordinals) for batch in batches for rank in batch.ranks for m in rank]


@st.composite
def cases(draw: Any) -> tuple[PlanConfig, tuple[Any, ...]]:
    samples = draw(st.integers(1, 3000)), draw(st.integers(1, 40)), draw(st.integers(0, 99))
    ranks = draw(st.integers(1, 64))
    accumulate, size = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    options: dict[str, Any] = draw(
        st.sampled_from([
            {"grouping": "fixed"}, {"grouping": "fixed", "mode": "epoch"},
            {"budgets": {"pixels": 50 * size}}, {"budgets": {"pixels": 50 * size}, "mode": "epoch"},
            {"budgets": {"pixels": 30}}, {"budgets": {"pixels": 30}, "oversize": "refuse"},
            {"budgets": {"pixels": 30}, "oversize": "refuse", "mode": "epoch"},
            {"counts": "equal"}, {"counts": "equal", "work": {"pixels": 3}},
            {"counts": "equal", "budgets": {"pixels": 90}, "oversize": "refuse"},
            {"budgets": {"pixels": 60}, "waits": "step"},
            {"budgets": {"pixels": 60}, "partition": "greedy"},
        ])
    )  # fmt: skip
    fixed = options.get("grouping") == "fixed"
    step = ranks * accumulate * size if fixed else draw(st.integers(1, 600))
    empties = draw(st.booleans())
    balance = Balance(**{"mode": "window", **options}, accumulate=accumulate, shapes=BY_SHAPE)
    config = PlanConfig.from_balance(
        balance, ranks=ranks, resources=RESOURCES, batch_size=size if fixed else None,
        samples_per_step=step if empties else max(step, ranks * accumulate),
        empty_microbatches=empties,
    )  # fmt: skip
    return config, (*samples, draw(st.booleans()))


@given(cases())
@settings(max_examples=60, deadline=None)
def test_each_sample_is_once_in_a_microbatch_of_its_shape(case: Any) -> None:
    check_plan(*case)


@pytest.mark.long
@given(cases())
@settings(max_examples=500, deadline=None)
def test_each_sample_is_once_in_a_microbatch_of_its_shape_in_many_plans(case: Any) -> None:
    check_plan(*case)


def check_plan(config: PlanConfig, drawn: tuple[Any, ...]) -> None:
    costs = draw_costs(*drawn)
    batches, over, left_out = plan_epoch(config, costs)
    groups = cells(batches)
    seen = Counter(ordinal for group in groups for ordinal in group)
    refused = {*over} if config.oversize == "refuse" else set()
    needed = config.ranks * config.first_accumulate
    assert max(seen.values(), default=1) == 1
    assert not {*seen} & refused
    if config.empty_microbatches:
        assert left_out == 0
        assert {*seen} | refused == {*range(len(costs))}
    else:  # too few samples for a step's microbatches are left out, and counted
        missing = len(costs) - len(seen)
        assert missing - len(refused) <= left_out <= missing
        shapes = len({*costs[:, 0].tolist()})
        assert left_out < needed * (config.batch_size or 1) + shapes or not batches
        assert all(groups)
        if config.grouping == "fixed":
            # Nothing stays out if the samples can be a multiple of a step's microbatches.
            counts = Counter(costs[:, 0].tolist()).values()
            least = sum(-(-count // (config.batch_size or 1)) for count in counts)
            assert left_out == 0 or -(-least // needed) * needed > len(costs)
    limit, budget = most_samples(config), config.budgets[1]
    for group in groups:
        assert len({*costs[group, 0].tolist()}) <= 1
        assert limit is None or len(group) <= limit
        assert budget is None or len(group) < 2 or costs[group, 1].sum() <= budget
    assert all(len(rank) == config.first_accumulate for b in batches for rank in b.ranks)
    assert all(len(batch.ranks) == config.ranks for batch in batches)
    assert [batch.step for batch in batches] == list(range(len(batches)))


def most_samples(config: PlanConfig) -> int | None:
    if config.grouping == "fixed":
        return config.batch_size
    whole = config.ranks * config.first_accumulate
    return -(-config.samples_per_step // whole) if config.counts == "equal" else None
