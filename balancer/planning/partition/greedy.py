"""Partition by a single size: assigns each item to the part with the least sum so far."""

import heapq
from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64


def greedy(sizes: Int64 | Sequence[int], parts: int, equal: bool = False) -> Int64:
    """Return the part of each item, int64 (n,): longest processing time first.

    R. L. Graham, Bounds on multiprocessing timing anomalies (1969): the largest sum is at most
    4/3 - 1/(3 parts) times the best possible. DistTrain §6.1 quotes that bound but sorts
    ascending. equal=True gives all parts n / parts items, the first ones one more where that is not
    whole; the bound then no longer holds.

    >>> greedy([5, 4, 3, 3, 3], parts=2).tolist()
    [0, 1, 1, 0, 1]
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    items = len(sizes)
    room = [items // parts + (part < items % parts) for part in range(parts)]
    heap = [(0, part) for part in range(parts) if room[part] or not equal]
    part_of = np.zeros(items, dtype=np.int64)
    values = sizes.tolist()
    for item in np.argsort(-sizes, kind="stable").tolist():
        load, part = heapq.heappop(heap)
        part_of[item] = part
        room[part] -= 1
        if room[part] or not equal:
            heapq.heappush(heap, (load + values[item], part))
    return part_of
