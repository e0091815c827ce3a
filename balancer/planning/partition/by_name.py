"""The partitions of groups to ranks, by the name that a configuration gives.

The default is for ranks that wait for each other at every pass, as they do without a pipeline. A
micro-step is what all ranks run at the same time: one group (microbatch) each. Groups of like loads
are put side by side in a micro-step, so that no rank waits long; within a micro-step groups go to
ranks such that the ranks' sums over the whole step stay even too.

Every rank gets the same number of groups (microbatches), in the order in which it runs them.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import assign_rows
from ..problem.loads import UNLIMITED, alike, common_unit, scale_costs

_MOST = 2**26  # scaled deviations are cut here, so that sums of products stay in 64 bits


def assign_in_rows(rows: Int64, loads: Int64, seed: int) -> Int64:
    """Return int64 (ranks, accumulate): rows (accumulate, ranks) of groups given, rank sums even.

    loads: (groups, resources).
    """
    if rows.shape[1] == 1:  # in a loop of one rank a good part of a small step's time
        return np.ascontiguousarray(rows.T)
    unlimited = np.full(loads.shape[1], UNLIMITED)
    small, _ = scale_costs(loads, unlimited, len(loads))
    deviations = (small - small.sum(axis=0) // len(small)).clip(-_MOST, _MOST)
    sizes = np.abs(deviations).sum(axis=1)
    assigned = assign_rows(rows, np.argsort(-sizes[rows], axis=1, kind="stable"), deviations)
    # Turn the ranks by an amount that depends on the seed, so that none is always first.
    first = -seed % len(assigned)
    return np.concatenate([assigned[first:], assigned[:first]])


def assign_groups(partition: str, loads: Int64, ranks: int, seed: int = 0) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources), groups a multiple of ranks; ValueError if not. Empty groups come
    last on their rank, except with "given".

    >>> assign_groups("given", np.array([[1], [2], [3], [4]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    if len(loads) % ranks:
        raise ValueError(
            f"{len(loads)} groups cannot be assigned evenly to {ranks} ranks; split or pad"
        )
    if partition == "given":
        return np.ascontiguousarray(np.arange(len(loads), dtype=np.int64).reshape(-1, ranks).T)
    if partition == "greedy":
        # One size a group; each rank runs its groups by number.
        sizes = common_unit(loads, len(loads)).sum(axis=1)
        order = np.lexsort((np.arange(len(sizes)), sizes == 0, greedy(sizes, ranks, equal=True)))
        return order.reshape(ranks, -1)
    return assign_in_rows(alike(loads, ranks), loads, seed)


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
