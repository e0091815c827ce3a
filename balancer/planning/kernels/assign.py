"""The loop that assigns groups to ranks, one micro-step after another."""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Int, Int64, Matrix, Vector

# sums of deviations are cut here, so that products with deviations stay in 64 bits
_MOST_GATHERED = cython.declare(Int, 2**29)
_MOST_PRODUCT = cython.declare(Int, 2**62)


def assign_rows(rows: Matrix, order: Matrix, deviations: Matrix) -> Int64:
    """Return int64 (ranks, micro-steps): every row's groups, one to each rank, rank sums even.

    rows (m, ranks) are groups that run side by side; order (m, ranks) is the order in which a
    row's groups choose, those that deviate most first. A group takes the free rank where the
    product of the deviations that the rank has gathered and those that the group adds is least:
    that minimises the sum of squares. deviations (groups, resources) from their mean, below 2**29.
    """
    ranks, resources = rows.shape[1], deviations.shape[1]
    result = np.empty((ranks, rows.shape[0]), dtype=np.int64)
    assigned: Matrix = result
    gathered: Matrix = np.zeros((ranks, resources), dtype=np.int64)
    free: Vector = np.empty(ranks, dtype=np.int64)
    product: Int
    best: Int
    with cython.nogil:
        for m in range(rows.shape[0]):
            for x in range(ranks):
                free[x] = x
            left = ranks
            for place in range(ranks):
                group = rows[m, order[m, place]]
                best, choice = _MOST_PRODUCT, 0
                for x in range(left):
                    product = 0
                    for r in range(resources):
                        product += gathered[free[x], r] * deviations[group, r]
                    if product < best:
                        best, choice = product, x
                rank = free[choice]
                # the last free rank takes the place of the one that is free no more
                left -= 1
                free[choice] = free[left]
                assigned[rank, m] = group
                for r in range(resources):
                    whole = gathered[rank, r] + deviations[group, r]
                    gathered[rank, r] = min(max(whole, -_MOST_GATHERED), _MOST_GATHERED)
    return result
