"""The bounds of the planning benches: nothing beats them, and they are close where they can be."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.bounds import (
    least_pipeline_time,
    least_rows,
    least_slowest,
)
from benchmarks.planning.costs import synthetic
from benchmarks.planning.step import STRATEGIES, StepCase
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.partition.greedy import greedy
from counterpoise.balancer.planning.problem.loads import group_loads


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_no_assignment_has_a_smaller_largest_sum(sizes: list[int], ranks: int) -> None:
    best = min(
        max(sum(s for s, at in zip(sizes, where, strict=True) if at == rank) for rank in (0, 1, 2))
        for where in product(range(ranks), repeat=len(sizes))
    )
    assert least_slowest(np.array(sizes), ranks) <= best


def test_the_bound_is_met_where_the_work_divides() -> None:
    costs = np.random.default_rng(0).integers(1, 100, (800, 1))
    sums = group_loads(costs, greedy(costs[:, 0], 8), 8)
    assert sums.max() == least_slowest(costs[:, 0], 8)


def test_a_giant_and_a_pair_of_large_ones_are_bounds() -> None:
    assert least_slowest(np.array([90, 1, 1, 1]), 4) == 90
    assert least_slowest(np.array([50, 50, 50, 1]), 2) == 100
    assert least_slowest(np.zeros(0, dtype=np.int64), 2) == 0


@given(st.lists(st.integers(0, 9), min_size=4, max_size=6))
def test_no_rows_with_a_sample_in_each_microbatch_are_lower(sizes: list[int]) -> None:
    """Every assignment to 2 ranks x 2 microbatches."""
    best = None
    for where in product(range(4), repeat=len(sizes)):
        if len(set(where)) == 4:
            a, b, c, d = (
                sum(s for s, at in zip(sizes, where, strict=True) if at == k) for k in range(4)
            )
            best = min(max(a, b) + max(c, d), best or 10**9)
    assert best is not None
    assert least_slowest(np.array(sizes), 2) <= least_rows(np.array(sizes), 2, 2) <= best


def test_short_rows_beside_a_giant_cost_their_smallest_samples() -> None:
    assert least_rows(np.array([90, 2, 2, 1, 1, 1]), 2, 3) == 1 + 2 + 90
    assert least_rows(np.array([90, 2, 2, 1, 1, 1]), 2, 1) == 90
    with pytest.raises(ValueError, match="leave some of 2 x 4 empty"):
        least_rows(np.array([90, 2, 2, 1, 1, 1]), 2, 4)


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_a_step_beats_its_bound(seed: int) -> None:
    """Every assignment of 5 samples to 2 ranks x 2 microbatches, run by 1F1B on 2 stages."""
    drawn = np.exp(np.random.default_rng(seed).normal(3, 1, (2, 5))).astype(np.int64)
    best = None
    for where in product(range(4), repeat=5):
        loads = group_loads(drawn.T, np.array(where), 4)
        time = max(
            PipelineEvaluator.one_forward_one_backward(2, np.ascontiguousarray(two.T))(np.arange(2))
            for two in (loads[:2], loads[2:])
        )
        best = time if best is None else min(best, time)
    assert best is not None
    assert best >= least_pipeline_time(drawn, 2) > 0


def test_uneven_microbatches_beat_equal_ones_but_not_the_bound() -> None:
    """Small microbatches at both ends fill and drain the pipeline sooner."""
    sizes = np.array([2, 6, 4])
    uneven, equal = (
        PipelineEvaluator.one_forward_one_backward(2, np.stack([row, row]))(np.arange(3))
        for row in (sizes, np.full(3, sizes.mean(), dtype=np.int64))
    )
    assert uneven < equal == 3 * 4 * (3 + 1)
    assert uneven >= least_pipeline_time(np.stack([sizes, sizes]), 1)


@pytest.mark.parametrize("seed", range(6))
def test_no_strategy_of_the_bench_beats_the_bound(seed: int) -> None:
    costs = synthetic(24, seed).costs
    step = StepCase(costs, 2, 2, 2, (40, 20_000), seed)
    for strategy in STRATEGIES.values():
        slowest = max(pipeline(order) for pipeline, order in strategy(step))
        assert slowest >= step.bound()
