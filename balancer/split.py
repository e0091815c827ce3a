"""More groups out of fewer: the largest groups are cut in two until there are enough."""

import heapq

from .plan import Int64


def split_largest(sizes: Int64, groups: list[list[int]], wanted: int) -> list[list[int]]:
    """Return `wanted` groups of the same samples; empty ones only if there are fewer samples.

    sizes: one number per sample. The largest group of two or more samples is cut into two of
    about the same size, again and again; groups keep their places, new ones come last.

    >>> import numpy as np
    >>> split_largest(np.array([3, 2, 1, 9]), [[0, 1, 2], [3]], wanted=4)
    [[0], [3], [1], [2]]
    >>> split_largest(np.array([3]), [[0]], wanted=2)
    [[0], []]
    """
    result = [list(group) for group in groups]
    heap = [(-int(sizes[group].sum()), k) for k, group in enumerate(result) if len(group) > 1]
    heapq.heapify(heap)
    while len(result) < wanted and heap:
        _, k = heapq.heappop(heap)
        first, second = _halves(sizes, result[k])
        result[k] = first
        result.append(second)
        for part in (k, len(result) - 1):
            if len(result[part]) > 1:
                heapq.heappush(heap, (-int(sizes[result[part]].sum()), part))
    return result + [[] for _ in range(wanted - len(result))]


def _halves(sizes: Int64, group: list[int]) -> tuple[list[int], list[int]]:
    halves: tuple[list[int], list[int]] = ([], [])
    loads = [0, 0]
    for item in sorted(group, key=lambda member: (-int(sizes[member]), member)):
        side = int((loads[1], len(halves[1])) < (loads[0], len(halves[0])))
        halves[side].append(item)
        loads[side] += int(sizes[item])
    return sorted(halves[0]), sorted(halves[1])
