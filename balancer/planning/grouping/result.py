"""What grouping gives: every sample's group, and what an algorithm could not place by itself."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..kernels.arrays import Int64


@dataclass(frozen=True, slots=True)
class Grouping:
    """group_of (n,): each sample's group, 0 .. groups - 1, or -1 for one that is in none.

    left_over and oversize: sample numbers, ascending, that the algorithm left or that exceed a
    budget alone; whether they are in groups of their own depends on the call.
    """

    group_of: Int64
    groups: int
    left_over: Int64
    oversize: Int64


def members(group_of: Int64, groups: int) -> list[list[int]]:
    """Return the sample numbers of each group, ascending.

    >>> members(np.array([1, 0, 1, -1]), 3)
    [[1], [0, 2], []]
    """
    order = np.argsort(group_of, kind="stable")
    edges = np.searchsorted(group_of[order], np.arange(groups + 1)).tolist()
    numbers: list[int] = order.tolist()
    return [numbers[begin:end] for begin, end in pairwise(edges)]


def mix(*numbers: int) -> int:
    """Return 62 bits that depend on all the numbers: a seed for one window of one epoch.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0)
    (True, False)
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & (2**64 - 1))) + 0x9E3779B97F4A7C15 & (2**64 - 1)
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        state = (state ^ state >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        state ^= state >> 31
    return state >> 2
