"""Splits layers into contiguous stages so that the slowest is as fast as possible.

The dynamic program of Optimus (2025), Appendix B, after Alpa: let F(l, m) be the smallest possible
time of the slowest of m stages that hold the first l layers; it is the minimum over j of
max(F(j, m - 1), time of layers j + 1..l). Many partitions reach the minimum, and the published
program leaves open which to take. This one takes the most even stages (least squares, exactly).
Then, if ranks hold several chunks, it moves single layers while the ranks get more even: a local
search, so the result is not always the best. Ties go to more layers on later stages, which hold
fewer microbatches in 1F1B.
"""

from collections.abc import Sequence

import numpy as np

from ..ir.channels import Ints


def partition(layers_ns: Sequence[int], placement: Sequence[int]) -> tuple[int, ...]:
    """Return the number of layers of each stage.

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
    """Return F(L, m), the time of the slowest stage; `until[l]`: the time of the first l layers."""
    best = until.copy()
    for stage in range(1, stages):
        worse = best.copy()
        for end in range(stage + 1, len(until)):
            inner = slice(stage, end)
            worse[end] = np.maximum(best[inner], until[end] - until[inner]).min()
        best = worse
    return int(best[-1])


def _even_stages(until: Ints, stages: int, longest: int) -> list[int]:
    """Return the most even stages of which none is longer than `longest`: their borders."""
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
    """Return better borders, found by moving single layers; no stage gets longer than `longest`.

    The search minimizes the sum of two bounds on the time of a microbatch in the steady phase: the
    slowest rank, and the slowest stage of each chunk, summed over the chunks (the ranks go through
    a chunk together). A move takes a layer from a stage to another and shifts those in between.
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
        # Row 0 keeps the borders, so another row is taken only if it is better.
        best = int(np.lexsort((spread, slowest + rounds))[0])
        if (slowest[best] + rounds[best], spread[best]) >= (slowest[0] + rounds[0], spread[0]):
            return [int(border) for border in current]
        current = moved[best]
