"""Orders the microbatches of all ranks of a step, then moves work off the slowest rank.

Equal sums are not equal times: a rank with one long microbatch waits for it in every stage. So
each rank is ordered first; then the slowest one swaps microbatches with fast ones while the
slowest time of the step falls.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import check_work
from ..problem.config import OrderRanks
from .evaluator import PipelineEvaluator
from .search import find_order

MakeEvaluator = Callable[[Int64], PipelineEvaluator]

_ROUNDS = 64
_PARTNERS = 6  # fastest ranks that are tried as partners of the slowest
_SWAPS = 24  # swaps that are evaluated for each pair of ranks
_EVALUATIONS = 2_000  # makespans that 2-opt may compute after a swap
# About what Python takes without compiled kernels, for each rank, stage and cube of microbatches
_PLAIN_S = 3e-5


def rank_ordering(name: str, make_evaluator: MakeEvaluator) -> OrderRanks:
    """Return the function that make_planner needs for an ordering: (loads, assigned) -> assigned.

    loads (groups, resources), assigned (ranks, accumulate) group numbers. make_evaluator makes the
    pipeline of microbatches with given loads (accumulate, resources). Raises ValueError for an
    unknown name.
    """

    def order_ranks(loads: Int64, assigned: Int64) -> Int64:
        pipelines = [make_evaluator(loads[row]) for row in assigned]
        ranks, count = assigned.shape
        seconds = _PLAIN_S * ranks * pipelines[0].stages * count**3
        check_work(f"ordering {count} microbatches on each of {ranks} ranks", seconds)
        orders = [find_order(name, pipeline) for pipeline in pipelines]
        placed = np.stack([row[order] for row, order in zip(assigned, orders, strict=True)])
        sorted_pipelines = [_reordered(*pair) for pair in zip(pipelines, orders, strict=True)]
        return level_ranks(placed, sorted_pipelines)

    return order_ranks


def level_ranks(assigned: Int64, pipelines: list[PipelineEvaluator]) -> Int64:
    """Swap microbatches between the slowest rank and fast ones while the slowest time falls.

    assigned (ranks, accumulate) group numbers; pipelines: one per rank, its microbatches in that
    order. Never worse than the assignment given; every rank keeps its number of microbatches.
    """
    assigned, pipelines = assigned.copy(), list(pipelines)
    here = np.arange(assigned.shape[1], dtype=np.int64)
    times = [pipeline(here) for pipeline in pipelines]
    for _ in range(_ROUNDS):
        slow = max(range(len(times)), key=lambda rank: (times[rank], -rank))
        partners = sorted(range(len(times)), key=lambda rank: (times[rank], rank))[:_PARTNERS]
        swap = min((_best_swap(pipelines, times, slow, fast) for fast in partners), default=None)
        if swap is None or swap[0] >= times[slow]:
            break
        _, fast, give, take = swap
        pipelines[slow], pipelines[fast] = _swapped(pipelines[slow], pipelines[fast], give, take)
        assigned[slow, give], assigned[fast, take] = assigned[fast, take], assigned[slow, give]
        for rank in (slow, fast):
            order = pipelines[rank].two_opt(here, _EVALUATIONS)
            assigned[rank] = assigned[rank][order]
            pipelines[rank] = _reordered(pipelines[rank], order)
            times[rank] = pipelines[rank](here)
    return assigned


def _best_swap(
    pipelines: list[PipelineEvaluator], times: list[int], slow: int, fast: int
) -> tuple[int, int, int, int]:
    """Return the best swap found: (slower of both times after it, fast, place in slow, in fast)."""
    if slow == fast:
        return times[slow], fast, 0, 0
    slower, faster = pipelines[slow], pipelines[fast]
    # Only swaps that shift about half of the difference are worth a simulation.
    here = np.arange(slower.costs.shape[1], dtype=np.int64)
    gaps = slower.costs.sum(axis=0)[:, None] - faster.costs.sum(axis=0)[None]
    target = (times[slow] - times[fast]) // 2 * slower.stages // 2
    off = np.where(gaps > 0, np.abs(gaps - target), 2**62).ravel()
    best = (times[slow], fast, 0, 0)
    for place in np.argsort(off, kind="stable")[:_SWAPS].tolist():
        give, take = divmod(place, len(here))
        if gaps[give, take] <= 0:
            break
        time = max(pipeline(here) for pipeline in _swapped(slower, faster, give, take))
        best = min(best, (time, fast, give, take))
    return best


def _swapped(
    slower: PipelineEvaluator, faster: PipelineEvaluator, give: int, take: int
) -> tuple[PipelineEvaluator, PipelineEvaluator]:
    """Return both pipelines after a swap of one microbatch each."""
    first, second = slower.costs.copy(), faster.costs.copy()
    first[:, give], second[:, take] = faster.costs[:, take], slower.costs[:, give]
    return replace(slower, costs=first), replace(faster, costs=second)


def _reordered(pipeline: PipelineEvaluator, order: Int64) -> PipelineEvaluator:
    """Return the pipeline with its microbatches in another order."""
    return replace(pipeline, costs=np.ascontiguousarray(pipeline.costs[:, order]))
