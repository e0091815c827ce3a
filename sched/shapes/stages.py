"""Layers to stages: the contiguous partition whose slowest stage is fastest.

The dynamic programme of Optimus (2024), Appendix B, after Alpa: F(l, m), the least longest stage of
the first l layers on m stages, is the minimum over j of max(F(j, m - 1), time of layers j + 1..l).
Many partitions reach it, and the published programme leaves open which to take. This one takes the
most even stages (least squares, exactly) and then, where ranks hold several chunks, moves single
layers while the ranks get more even (a local search, so not always the best there is). Ties go to
more layers on later stages, which hold fewer microbatches in 1F1B.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def partition(layers_ns: Sequence[int], placement: Sequence[int]) -> tuple[int, ...]:
    """How many layers each stage gets.

    `layers_ns`: the layers' times in model order. `placement[s]`: the rank of stage s. Raises
    ValueError for negative times or fewer layers than stages.

    >>> partition([1, 1, 1, 1, 4], [0, 1, 2])
    (2, 2, 1)
    >>> partition([2] * 6 + [3] * 2, [0, 1, 0, 1])
    (2, 2, 2, 2)
    """
    stages = len(placement)
    if stages < 1 or len(layers_ns) < stages:
        raise ValueError(f"{len(layers_ns)} layers do not fill {stages} stages; use fewer stages")
    if min(layers_ns) < 0:
        raise ValueError(f"a layer takes {min(layers_ns)} ns; give times of 0 or more")
    until = np.concatenate(([0], np.cumsum(np.asarray(layers_ns, np.int64))))
    longest = least_longest_stage(until, stages)
    borders = _even_stages(until, stages, longest)
    if len(set(placement)) < stages:
        borders = _even_ranks(until, borders, placement, longest)
    return tuple(int(size) for size in np.diff(borders))


def least_longest_stage(until: Ints, stages: int) -> int:
    """F(L, m): the least longest stage. `until[l]`: the time of the first l layers."""
    best = until.copy()
    for stage in range(1, stages):
        worse = best.copy()
        for end in range(stage + 1, len(until)):
            inner = slice(stage, end)
            worse[end] = np.maximum(best[inner], until[end] - until[inner]).min()
        best = worse
    return int(best[-1])


def _even_stages(until: Ints, stages: int, longest: int) -> list[int]:
    """The partition of least squares with no stage longer than that: where each stage begins."""
    count = len(until) - 1
    far = np.iinfo(np.int64).max // 2
    scale = max(1, int(until[-1]) // 2**20)
    squares = np.where(until <= longest, (until // scale) ** 2, far)
    squares[0] = far
    choices = []
    for stage in range(1, stages):
        total, choice = np.full(count + 1, far), np.zeros(count + 1, np.int64)
        for end in range(stage + 1, count + 1):
            inner = np.arange(stage, end)
            time = until[end] - until[inner]
            value = np.where(time <= longest, squares[inner] + (time // scale) ** 2, far)
            choice[end] = inner[np.argmin(value)]
            total[end] = min(far, int(value.min()))
        squares = total
        choices.append(choice)
    borders = [count]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    return [0, *reversed(borders)]


def _even_ranks(
    until: Ints, borders: list[int], placement: Sequence[int], longest: int
) -> list[int]:
    """Move single layers while it helps and no stage gets longer than that.

    What is lessened is the sum of two bounds of the steady phase's pace: the slowest rank, and the
    slowest stage of each chunk, summed over the chunks (the ranks go through a chunk together). A
    move gives one layer from a stage to another, those in between shifted.
    """
    stages = len(placement)
    first, last = np.triu_indices(stages - 1)
    at = np.arange(stages + 1)
    inside = (at > first[:, None]) & (at <= last[:, None] + 1)
    steps = np.concatenate((np.zeros((1, stages + 1), np.int64), inside * 1, inside * -1))
    holder = np.eye(max(placement) + 1, dtype=np.int64)[np.asarray(placement)]
    nth = np.array([list(placement[:stage]).count(placement[stage]) for stage in range(stages)])
    chunks = [np.flatnonzero(nth == chunk) for chunk in range(int(nth.max()) + 1)]
    current = np.asarray(borders)
    while True:
        moved = current + steps
        moved = moved[(np.diff(moved, axis=1) >= 1).all(axis=1)]
        times = np.diff(until[moved], axis=1)
        fits = times.max(axis=1) <= longest
        moved, times = moved[fits], times[fits]
        slowest = (times @ holder).max(axis=1)
        rounds = sum(times[:, group].max(axis=1) for group in chunks)
        spread = ((times / times.mean()) ** 2).sum(axis=1)
        # Row 0 is to stay: only a move that is better ends elsewhere.
        best = int(np.lexsort((spread, slowest + rounds))[0])
        if (slowest[best] + rounds[best], spread[best]) >= (slowest[0] + rounds[0], spread[0]):
            return [int(border) for border in current]
        current = moved[best]
