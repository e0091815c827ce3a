"""Ordering: never worse than the order given, and better than chance."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.ordering.ranks import level_ranks, rank_ordering
from counterpoise.balancer.planning.ordering.search import disttrain, find_order
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.options import NAMES


def pipeline_of(seed: int, ranks: int, count: int, chunks: int = 1) -> PipelineEvaluator:
    forward = np.full((ranks * chunks, count), 1000, dtype=np.int64)
    drawn = np.exp(np.random.default_rng(seed).normal(0, 1, count)) * 600
    forward[0] = drawn.astype(np.int64)
    return PipelineEvaluator.one_forward_one_backward(ranks, forward)


@pytest.mark.parametrize("name", NAMES["ordering"])
@given(seed=st.integers(0, 99), ranks=st.integers(1, 5), count=st.integers(1, 12))
@settings(deadline=None, max_examples=30)
def test_no_ordering_is_worse_than_the_order_given(
    name: str, seed: int, ranks: int, count: int
) -> None:
    pipeline = pipeline_of(seed, ranks, count)
    order = find_order(name, pipeline)
    assert sorted(order) == list(range(count))
    assert pipeline(order) <= pipeline(np.arange(count))


@given(
    seed=st.integers(0, 99),
    ranks=st.integers(1, 6),
    rows=st.integers(1, 4),
    chunks=st.integers(1, 3),
)
@settings(deadline=None, max_examples=40)
def test_disttrain_returns_every_microbatch_once(
    seed: int, ranks: int, rows: int, chunks: int
) -> None:
    pipeline = pipeline_of(seed, ranks, ranks * rows, chunks)
    assert sorted(disttrain(pipeline)) == list(range(ranks * rows))


def test_disttrain_puts_the_smallest_at_both_ends() -> None:
    pipeline = pipeline_of(3, 4, 16)
    sizes = pipeline.costs[:4].sum(axis=0)
    order = disttrain(pipeline)
    assert sizes[order[0]] == sizes.min()
    assert set(order[-3:]) <= set(np.argsort(sizes, kind="stable")[:4])


def test_two_opt_beats_random_orders() -> None:
    ratios = []
    for seed in range(8):
        pipeline = pipeline_of(seed, 4, 16)
        shuffled = [np.random.default_rng(k).permutation(16) for k in range(50)]
        mean = np.mean([pipeline(order) for order in shuffled])
        ratios.append(mean / pipeline(find_order("two_opt", pipeline)))
    assert np.mean(ratios) >= 1.07


def test_equal_microbatches_take_the_known_time() -> None:
    for ranks, count in ((1, 3), (4, 8), (3, 2)):
        equal = np.ones((ranks, count), dtype=np.int64)
        pipeline = PipelineEvaluator.one_forward_one_backward(ranks, equal)
        assert pipeline(np.arange(count)) == 3 * (count + ranks - 1)
    interleaved = PipelineEvaluator.one_forward_one_backward(4, np.ones((8, 8), dtype=np.int64))
    assert interleaved(np.arange(8)) == 3 * (2 * 8 + 3)


def test_a_pipeline_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        PipelineEvaluator.one_forward_one_backward(2, np.ones((3, 4), dtype=np.int64))
    with pytest.raises(ValueError, match="use 8"):
        PipelineEvaluator.one_forward_one_backward(4, np.ones((8, 6), dtype=np.int64))


def step_time(pipelines: list[PipelineEvaluator]) -> int:
    return max(pipeline(np.arange(pipeline.costs.shape[1])) for pipeline in pipelines)


@pytest.mark.parametrize("seed", range(5))
def test_levelling_ranks_never_makes_a_step_slower(seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 900, (24,))

    def of(loads: np.ndarray) -> PipelineEvaluator:
        return PipelineEvaluator.one_forward_one_backward(3, np.stack([loads] * 3))

    assigned = np.arange(24).reshape(4, 6)
    found = level_ranks(assigned, [of(sizes[row]) for row in assigned])
    assert sorted(found.ravel()) == list(range(24))
    assert step_time([of(sizes[row]) for row in found]) <= step_time(
        [of(sizes[r]) for r in assigned]
    )


def test_levelling_takes_work_off_the_slowest_rank() -> None:
    sizes = np.array([[900, 800, 700], [300, 200, 100], [310, 210, 110]])

    def of(loads: np.ndarray) -> PipelineEvaluator:
        return PipelineEvaluator.one_forward_one_backward(3, np.stack([loads] * 3))

    found = sizes.ravel()[level_ranks(np.arange(9).reshape(3, 3), [of(row) for row in sizes])]
    # 2,400 of 3,630 are on the first rank; no rank can have less than 1,210.
    assert sizes.sum(axis=1).max() == 2400
    assert found.sum(axis=1).max() < 1500
    assert step_time([of(row) for row in found]) < 0.7 * step_time([of(row) for row in sizes])


def test_the_planner_orders_ranks() -> None:
    config = PlanConfig(3, 60, "auto", ("tokens",), (3000,), ordering="two_opt", accumulate_from=6)
    costs = np.random.default_rng(0).integers(50, 1500, (60, 1))

    def of(loads: np.ndarray) -> PipelineEvaluator:
        return PipelineEvaluator.one_forward_one_backward(3, np.stack([loads[:, 0]] * 3))

    window = Window(0, 0, 0, costs, last=True)

    def time_of(batch_of: object) -> int:
        (batch,) = batch_of.batches  # type: ignore[attr-defined]
        rows = [np.array([costs[list(m.ordinals)].sum(axis=0) for m in r]) for r in batch.ranks]
        return step_time([of(row) for row in rows])

    ordered = make_planner(config, rank_ordering("two_opt", of)).plan(window)
    given_ = make_planner(PlanConfig(3, 60, "auto", ("tokens",), (3000,), accumulate_from=6))
    assert time_of(ordered) <= time_of(given_.plan(window))
    with pytest.raises(ValueError, match="contradict each other"):
        make_planner(config)
