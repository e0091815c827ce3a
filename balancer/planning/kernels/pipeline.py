"""The loops of ordering: the makespan of a pipeline program, and 2-opt over it.

A program is flat: operation k runs on rank[k] after the operation before it there and after
operation after[k] (-1: none); it takes costs[row[k], order[place[k]]]. Operations are listed so
that each comes after those it waits for, whatever the costs.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Vector


def run(
    rank: Vector, after: Vector, row: Vector, place: Vector, costs: Matrix, order: Vector,
    finish: Vector,
) -> int:  # fmt: skip
    """Fill finish (operations,) with end times; return the makespan."""
    clock: Vector = np.empty(count_ranks(rank), dtype=np.int64)
    makespan: Int
    with cython.nogil:
        makespan = run_program(rank, after, row, place, costs, order, finish, clock)
    return makespan


def two_opt(
    rank: Vector, after: Vector, row: Vector, place: Vector, costs: Matrix, order: Vector,
    most: Int,
) -> int:  # fmt: skip
    """Swap pairs of the order in place as long as the makespan falls; return it.

    The first swap that helps is kept; sweeps over all pairs repeat until none helps or `most`
    makespans have been computed.
    """
    finish: Vector = np.zeros(rank.shape[0], dtype=np.int64)
    clock: Vector = np.empty(count_ranks(rank), dtype=np.int64)
    best: Int
    done: Int = 1
    better: Flag = True
    with cython.nogil:
        best = run_program(rank, after, row, place, costs, order, finish, clock)
        while better:
            better = False
            for a in range(order.shape[0] - 1):
                for b in range(a + 1, order.shape[0]):
                    if done >= most:
                        break
                    order[a], order[b] = order[b], order[a]
                    makespan = run_program(rank, after, row, place, costs, order, finish, clock)
                    done += 1
                    if makespan < best:
                        best = makespan
                        better = True
                    else:
                        order[a], order[b] = order[b], order[a]
            if done >= most:
                break
    return best


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def count_ranks(rank: Vector) -> Int:
    """Return the number of ranks."""
    ranks: Int = 0
    for k in range(rank.shape[0]):
        ranks = max(ranks, rank[k] + 1)
    return ranks


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def run_program(
    rank: Vector, after: Vector, row: Vector, place: Vector, costs: Matrix, order: Vector,
    finish: Vector, clock: Vector,
) -> Int:  # fmt: skip
    """Fill finish (operations,) with end times; return the makespan. clock (ranks,) is scratch."""
    last: Int = 0
    for r in range(clock.shape[0]):
        clock[r] = 0
    for k in range(rank.shape[0]):
        begin: Int = clock[rank[k]]
        if after[k] >= 0 and finish[after[k]] > begin:
            begin = finish[after[k]]
        end = begin + costs[row[k], order[place[k]]]
        clock[rank[k]] = end
        finish[k] = end
        if end > last:
            last = end
    return last
