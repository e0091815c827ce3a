"""Converts groups to Slots, the flat arrays that the compiled loops change, and back."""

import numpy as np

from ..kernels.arrays import Int64, Slots
from ..problem.loads import group_loads


def make_slots(costs: Int64, group_of: Int64, groups: int, spare: int) -> Slots:
    """Return the members of every group, ascending, each group followed by `spare` free places."""
    count = np.bincount(group_of, minlength=groups)
    room = count + spare
    start = np.concatenate(([0], np.cumsum(room)))
    items = np.full(start[-1], -1, dtype=np.int64)
    order = np.argsort(group_of, kind="stable")
    inside = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    items[start[group_of[order]] + inside] = order
    return Slots(items, start, count, group_loads(costs, group_of, groups))


def read_slots(slots: Slots, samples: int) -> Int64:
    """Return group_of (samples,) from the members.

    >>> costs, group_of = np.array([[1], [2], [3]]), np.array([1, 0, 1])
    >>> read_slots(make_slots(costs, group_of, groups=2, spare=1), samples=3).tolist()
    [1, 0, 1]
    """
    groups = len(slots.counts)
    room = np.diff(slots.start)
    place = np.arange(len(slots.items)) - np.repeat(slots.start[:-1], room)
    used = place < np.repeat(slots.counts, room)
    group_of = np.empty(samples, dtype=np.int64)
    group_of[slots.items[used]] = np.repeat(np.arange(groups), room)[used]
    return group_of
