"""Partition by a single size: assigns each item to the part with the least sum so far."""

import heapq
from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64


def greedy(sizes: Int64 | Sequence[int], parts: int, equal: bool = False) -> Int64:
    """Return the part of each item, int64 (n,): longest processing time first.

    R. L. Graham, Bounds on multiprocessing timing anomalies (1969): the largest sum is at most
    4/3 - 1/(3 parts) times the best possible. DistTrain §6.1 quotes that bound but sorts
    ascending (`ascending`). equal=True gives all parts n / parts items, the first ones one more
    where that is not whole; the bound then no longer holds.

    >>> greedy([5, 4, 3, 3, 3], parts=2).tolist()
    [0, 1, 1, 0, 1]
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    return _list_schedule(sizes, np.argsort(-sizes, kind="stable"), parts, equal)


def ascending(sizes: Int64 | Sequence[int], parts: int, equal: bool = False) -> Int64:
    """Return the part of each item, smallest items first, as DistTrain's Algorithm 2 prints it.

    Its bound is that of any list schedule, 2 - 1/parts; here for comparison.

    >>> ascending([5, 4, 3, 3, 3], parts=2).tolist()
    [0, 1, 0, 1, 0]
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    return _list_schedule(sizes, np.argsort(sizes, kind="stable"), parts, equal)


def quotas(items: int, parts: int) -> list[int]:
    """Return how many items each part gets when all get the same number, or one more.

    >>> quotas(5, 3)
    [2, 2, 1]
    """
    if parts < 1:
        raise ValueError(f"parts is {parts}, needed is a positive integer")
    return [items // parts + (part < items % parts) for part in range(parts)]


def _list_schedule(sizes: Int64, order: Int64, parts: int, equal: bool) -> Int64:
    """Assign items in the order given to the part with the least sum that has room."""
    room = quotas(len(sizes), parts)
    heap = [(0, part) for part in range(parts) if room[part] or not equal]
    part_of = np.zeros(len(sizes), dtype=np.int64)
    values = sizes.tolist()
    for item in order.tolist():
        load, part = heapq.heappop(heap)
        part_of[item] = part
        room[part] -= 1
        if room[part] or not equal:
            heapq.heappush(heap, (load + values[item], part))
    return part_of
