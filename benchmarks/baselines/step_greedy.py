"""Short greedy plans of a step, which ours must not be behind: see `bench waits` and `step`."""

import heapq

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.partition.by_name import greedy
from counterpoise.balancer.planning.problem.loads import group_loads


def greedy_rows(costs: Int64, ranks: int, accumulate: int) -> Int64:
    """Return each sample's cell, rank x accumulate + microbatch, for costs (n, resources).

    Heaviest first to the cell whose largest load, of resources with equal means, stays least; cells
    sorted by load are rows that run side by side.

    >>> greedy_rows(np.array([[9, 1], [1, 9], [8, 1], [1, 8]]), ranks=2, accumulate=1).tolist()
    [0, 1, 1, 0]
    """
    work = costs / np.maximum(costs.mean(axis=0), 1e-9)
    loads = np.zeros((ranks * accumulate, work.shape[1]))
    bin_of = np.empty(len(work), dtype=np.int64)
    for sample in np.argsort(-work.sum(axis=1), kind="stable").tolist():
        found = int((loads + work[sample]).max(axis=1).argmin())
        bin_of[sample] = found
        loads[found] += work[sample]
    place = np.empty(len(loads), dtype=np.int64)
    place[np.argsort(-loads.sum(axis=1), kind="stable")] = np.arange(len(loads))
    row, rank = np.divmod(place, ranks)
    return (rank * accumulate + row)[bin_of]


def single_key(costs: Int64, work: Int64, ranks: int, accumulate: int) -> Int64:
    """Return each sample's cell: Graham's rule onto ranks by one number per sample, work (n,).

    A rank's samples are then dealt out to its microbatches in the same way.
    """
    rank_of = greedy(work, ranks)
    cell = np.empty(len(costs), dtype=np.int64)
    for rank in range(ranks):
        own = np.flatnonzero(rank_of == rank)
        cell[own] = rank * accumulate + greedy(work[own], accumulate)
    return cell


def ascending(work: Int64, ranks: int) -> Int64:
    """Return each sample's rank: smallest first to the least loaded rank.

    DistTrain (2025), Algorithm 2 as printed; its bound is that of any list schedule, 2 - 1 / ranks.

    >>> ascending(np.array([5, 4, 3, 3, 3]), ranks=2).tolist()
    [0, 1, 0, 1, 0]
    """
    loads = [(0, rank) for rank in range(ranks)]
    rank_of = np.empty(len(work), dtype=np.int64)
    for sample in np.argsort(work, kind="stable").tolist():
        load, rank_of[sample] = loads[0]
        heapq.heapreplace(loads, (load + int(work[sample]), int(rank_of[sample])))
    return rank_of


def loads_of(costs: Int64, cell: Int64, ranks: int, accumulate: int) -> Int64:
    """Return the loads (ranks, accumulate, resources) of samples in cells."""
    return group_loads(costs, cell, ranks * accumulate).reshape(ranks, accumulate, -1)
