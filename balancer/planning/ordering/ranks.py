"""Ordering for all ranks of a step: each rank's own order, then work moves off the slowest rank.

Equal sums are not equal times: a rank with one long microbatch waits for it in every stage. So
after each rank is ordered, the slowest one swaps microbatches with fast ones as long as the
slowest time of the step falls.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..kernels.arrays import Int64
from .evaluator import PipelineEvaluator
from .search import arrange

PipelineOf = Callable[[Int64], PipelineEvaluator]
ArrangeRanks = Callable[[Int64, Int64], Int64]

_ROUNDS = 64
_PARTNERS = 6
_SWAPS = 24
_EVALUATIONS = 2_000


def arranger(name: str, pipeline_of: PipelineOf, level: bool = True) -> ArrangeRanks:
    """Return what make_planner wants for an ordering: (loads, dealt) -> dealt.

    loads (groups, resources), dealt (ranks, accumulate) group numbers. pipeline_of makes the
    pipeline of microbatches with given loads (accumulate, resources). level=False orders each
    rank alone and leaves its microbatches with it. Raises ValueError for an unknown name.
    """

    def arranged(loads: Int64, dealt: Int64) -> Int64:
        pipelines = [pipeline_of(loads[row]) for row in dealt]
        orders = [arrange(name, pipeline) for pipeline in pipelines]
        placed = np.stack([row[order] for row, order in zip(dealt, orders, strict=True)])
        if not level:
            return placed
        sorted_pipelines = [_reordered(*pair) for pair in zip(pipelines, orders, strict=True)]
        return level_ranks(placed, sorted_pipelines)

    return arranged


def level_ranks(dealt: Int64, pipelines: list[PipelineEvaluator]) -> Int64:
    """Swap microbatches between the slowest rank and fast ones while the slowest time falls.

    dealt (ranks, accumulate) group numbers; pipelines: one per rank, its microbatches in that
    order. Never worse than the dealing given; every rank keeps its number of microbatches.
    """
    dealt, pipelines = dealt.copy(), list(pipelines)
    here = np.arange(dealt.shape[1], dtype=np.int64)
    times = [pipeline(here) for pipeline in pipelines]
    for _ in range(_ROUNDS):
        slow = max(range(len(times)), key=lambda rank: (times[rank], -rank))
        partners = sorted(range(len(times)), key=lambda rank: (times[rank], rank))[:_PARTNERS]
        found = min((_best_swap(pipelines, times, slow, fast) for fast in partners), default=None)
        if found is None or found[0] >= times[slow]:
            break
        _, fast, give, take = found
        pipelines[slow], pipelines[fast] = _swapped(pipelines[slow], pipelines[fast], give, take)
        dealt[slow, give], dealt[fast, take] = dealt[fast, take], dealt[slow, give]
        for rank in (slow, fast):
            order = pipelines[rank].two_opt(here, _EVALUATIONS)
            dealt[rank] = dealt[rank][order]
            pipelines[rank] = _reordered(pipelines[rank], order)
            times[rank] = pipelines[rank](here)
    return dealt


def _best_swap(
    pipelines: list[PipelineEvaluator], times: list[int], slow: int, fast: int
) -> tuple[int, int, int, int]:
    """(slower of both times after it, fast, microbatch of slow, of fast) of the best swap found."""
    if slow == fast:
        return times[slow], fast, 0, 0
    one, other = pipelines[slow], pipelines[fast]
    here = np.arange(one.costs.shape[1], dtype=np.int64)
    gaps = one.costs.sum(axis=0)[:, None] - other.costs.sum(axis=0)[None]
    wanted = (times[slow] - times[fast]) // 2 * one.stages // 2
    off = np.where(gaps > 0, np.abs(gaps - wanted), 2**62).ravel()
    best = (times[slow], fast, 0, 0)
    for place in np.argsort(off, kind="stable")[:_SWAPS].tolist():
        give, take = divmod(place, len(here))
        if gaps[give, take] <= 0:
            break
        time = max(pipeline(here) for pipeline in _swapped(one, other, give, take))
        best = min(best, (time, fast, give, take))
    return best


def _swapped(
    one: PipelineEvaluator, other: PipelineEvaluator, give: int, take: int
) -> tuple[PipelineEvaluator, PipelineEvaluator]:
    first, second = one.costs.copy(), other.costs.copy()
    first[:, give], second[:, take] = other.costs[:, take], one.costs[:, give]
    return replace(one, costs=first), replace(other, costs=second)


def _reordered(pipeline: PipelineEvaluator, order: Int64) -> PipelineEvaluator:
    return replace(pipeline, costs=np.ascontiguousarray(pipeline.costs[:, order]))
