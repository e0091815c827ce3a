"""Compiled loops of ordering: the makespan of a pipeline program, and 2-opt over it.

A program is flat: operation k runs on rank[k] after the operation before it there and after
operation after[k] (-1: none); it takes costs[row[k], order[place[k]]]. Operations are listed so
that each comes after those it waits for, whatever the costs.
"""

import numpy as np

from .arrays import Int64
from .jit import compiled


@compiled
def run(
    rank: Int64, after: Int64, row: Int64, place: Int64, costs: Int64, order: Int64, finish: Int64
) -> int:
    """Fill finish (operations,) with end times; return the makespan."""
    clock = np.zeros(rank.max() + 1, dtype=np.int64)
    last = np.int64(0)
    for k in range(rank.size):
        begin = clock[rank[k]]
        if after[k] >= 0 and finish[after[k]] > begin:
            begin = finish[after[k]]
        end = begin + costs[row[k], order[place[k]]]
        clock[rank[k]] = end
        finish[k] = end
        if end > last:
            last = end
    return int(last)


@compiled
def two_opt(
    rank: Int64, after: Int64, row: Int64, place: Int64, costs: Int64, order: Int64, most: int
) -> int:
    """Swap pairs of the order in place as long as the makespan falls; return it.

    The first swap that helps is kept; sweeps over all pairs repeat until none helps or `most`
    makespans have been computed.
    """
    finish = np.zeros(rank.size, dtype=np.int64)
    best = run(rank, after, row, place, costs, order, finish)
    done, better = 1, True
    while better:
        better = False
        for a in range(order.size - 1):
            for b in range(a + 1, order.size):
                if done >= most:
                    return best
                order[a], order[b] = order[b], order[a]
                found = run(rank, after, row, place, costs, order, finish)
                done += 1
                if found < best:
                    best, better = found, True
                else:
                    order[a], order[b] = order[b], order[a]
    return best
