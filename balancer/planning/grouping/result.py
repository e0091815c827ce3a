"""The result of grouping: each sample's group, and the samples that were left over or oversize."""

from itertools import pairwise

import msgspec
import numpy as np

from ..kernels.arrays import Int64


class GroupingResult(msgspec.Struct, frozen=True):
    """group_of (n,): each sample's group, 0 .. groups - 1, or -1 for a sample in no group.

    left_over and oversize: ascending numbers of the samples that the algorithm did not place and
    of those that exceed a budget alone. The function called decides if they get groups.
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
