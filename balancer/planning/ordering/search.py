"""Orders a rank's microbatches for its pipeline, never worse than the order given.

DistTrain's order (inter-microbatch reordering), repaired. As printed (DistTrain §6.2, Algorithm 3)
it returns l + p - 2 of l microbatches: the loop must end when none is left. Its idea: the smallest
microbatch first, so that all stages start early; the p - 1 smallest last, where intervals stay
unfilled; between them always the microbatch whose forward pass at the first rank fills the next
interval there best.

GETINTERVAL is the recurrence of the pipeline itself: the program is run with every microbatch
that has no place yet costing nothing; the interval is what the first rank then waits between the
forward pass in question and the backward pass after it. With several chunks (VPP) a microbatch
has several forward passes at the first rank; their intervals and their times are summed.
"""

import numpy as np

from ..kernels.arrays import Int64
from .evaluator import PipelineEvaluator

# Makespans that 2-opt may compute.
EVALUATIONS = 40_000


def find_order(name: str, pipeline: PipelineEvaluator) -> Int64:
    """Return the order that the ordering of that name finds for a pipeline's microbatches.

    The order given is 0, 1, 2, ... DistTrain's may be worse, so it is returned only if better.
    "two_opt" goes on from there by local search (Croes, 1958).
    """
    unordered = np.arange(pipeline.costs.shape[1], dtype=np.int64)
    if name == "given" or len(unordered) < 2:
        return unordered
    start = min(unordered, disttrain(pipeline), key=pipeline)
    return pipeline.two_opt(start, EVALUATIONS) if name == "two_opt" else start


def disttrain(pipeline: PipelineEvaluator) -> Int64:
    """Return an order of the pipeline's microbatches, int64 (microbatches,).

    DistTrain (2025), §6.2, Algorithm 3 with its count repaired; no bound, and it may be worse
    than the order given.

    >>> costs = np.array([[4, 1, 2, 3, 5], [1, 1, 1, 1, 1]])
    >>> disttrain(PipelineEvaluator.one_forward_one_backward(2, costs)).tolist()
    [1, 3, 0, 4, 2]
    """
    sizes = pipeline.costs[: pipeline.stages].sum(axis=0)
    pending = np.argsort(sizes, kind="stable").tolist()
    placed = [pending.pop(0)] if pending else []
    rear = [pending.pop(0) for _ in range(min(pipeline.ranks - 1, len(pending)))]
    gaps = _Gaps(pipeline)
    chunks = np.arange(0, pipeline.stages, pipeline.ranks)
    fill = pipeline.costs[chunks].sum(axis=0).tolist()
    # The warm-up: forward passes before the first backward pass share the first interval.
    first = min(gaps.warm_places - 1, len(pending))
    interval = gaps.first(placed) if first > 0 else 0
    for left in range(first, 0, -1):
        chosen = _closest(pending, pipeline.costs[0].tolist(), interval // left)
        interval -= int(pipeline.costs[0, chosen])
        pending.remove(chosen)
        placed.append(chosen)
    while pending:
        chosen = _closest(pending, fill, gaps.at(placed))
        pending.remove(chosen)
        placed.append(chosen)
    return np.array(placed + rear, dtype=np.int64)


def _closest(pending: list[int], sizes: list[int], target: int) -> int:
    """Return the pending microbatch whose size is closest to the target."""
    return min(pending, key=lambda k: (abs(sizes[k] - target), k))


class _Gaps:
    """Computes intervals at the first rank for a growing order."""

    def __init__(self, pipeline: PipelineEvaluator) -> None:
        self.pipeline = pipeline.padded()
        self.count = pipeline.costs.shape[1]
        here = np.flatnonzero(pipeline.rank == 0)
        backward = pipeline.row[here] >= pipeline.stages
        self.first_backward = int(here[np.argmax(backward)])
        warm = here[: int(np.argmax(backward))]
        self.warm_places = len(set(pipeline.place[warm].tolist()))
        # forward passes at rank 0 that a backward pass follows: (place, before, next backward)
        self.filled: dict[int, list[tuple[int, int]]] = {}
        for k in range(1, len(here) - 1):
            if not backward[k] and backward[k + 1]:
                place = int(pipeline.place[here[k]])
                neighbours = (int(here[k - 1]), int(here[k + 1]))
                self.filled.setdefault(place, []).append(neighbours)

    def first(self, placed: list[int]) -> int:
        """Return the interval between the first forward and the first backward pass."""
        ends = self._ends(placed)
        ready = int(ends[self.pipeline.after[self.first_backward]])
        return ready - int(ends[0])

    def at(self, placed: list[int]) -> int:
        """Return the sum of the intervals that the forward passes of the next place fill."""
        ends = self._ends(placed)
        total = 0
        for before, following in self.filled.get(len(placed), []):
            ready = int(ends[self.pipeline.after[following]])
            total += max(0, ready - int(ends[before]))
        return total

    def _ends(self, placed: list[int]) -> Int64:
        """Return the end of every operation; microbatches without a place cost nothing."""
        order = np.full(self.count, self.count, dtype=np.int64)
        order[: len(placed)] = placed
        return self.pipeline.finish(order)[0]
