"""Members of groups as flat arrays with a little free room: what the compiled loops work on."""

from dataclasses import dataclass

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import group_loads


@dataclass(frozen=True, slots=True)
class Slots:
    """items[start[g] : start[g] + count[g]] are the members of group g; loads are their sums."""

    items: Int64
    start: Int64
    count: Int64
    loads: Int64


def fill_slots(costs: Int64, group_of: Int64, groups: int, spare: int) -> Slots:
    """Lay out the members of every group, ascending, each with `spare` free places behind."""
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
    >>> read_slots(fill_slots(costs, group_of, groups=2, spare=1), samples=3).tolist()
    [1, 0, 1]
    """
    groups = len(slots.count)
    room = np.diff(slots.start)
    place = np.arange(len(slots.items)) - np.repeat(slots.start[:-1], room)
    filled = place < np.repeat(slots.count, room)
    group_of = np.empty(samples, dtype=np.int64)
    group_of[slots.items[filled]] = np.repeat(np.arange(groups), room)[filled]
    return group_of
