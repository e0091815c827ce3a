"""Compiled loop that deals micro-steps to ranks."""

import numpy as np

from .arrays import Int64
from .jit import compiled


@compiled
def deal_rows(rows: Int64, order: Int64, deviations: Int64) -> Int64:
    """Return int64 (ranks, rows): rows[m] dealt one group to each rank, rank sums kept even.

    rows (m, ranks) are groups side by side; order (m, ranks) says in which order a row's groups
    choose, those that deviate most first. A group takes the free rank where the product of what
    the rank has gathered and what the group adds is least: that minimises the sum of squares.
    deviations (groups, resources) from their mean, below 2**29.
    """
    ranks, resources = rows.shape[1], deviations.shape[1]
    dealt = np.empty((ranks, rows.shape[0]), dtype=np.int64)
    gathered = np.zeros((ranks, resources), dtype=np.int64)
    free = np.arange(ranks)
    for m in range(rows.shape[0]):
        left = ranks
        for x in range(ranks):
            free[x] = x
        for place in order[m]:
            group = rows[m, place]
            best, found = np.int64(2**62), 0
            for x in range(left):
                product = np.int64(0)
                for r in range(resources):
                    product += gathered[free[x], r] * deviations[group, r]
                if product < best:
                    best, found = product, x
            rank = free[found]
            left -= 1
            free[found] = free[left]
            dealt[rank, m] = group
            for r in range(resources):
                whole = gathered[rank, r] + deviations[group, r]
                gathered[rank, r] = min(max(whole, -(2**29)), 2**29)
    return dealt
