"""Groups of samples as arrays: results, splitting the largest, and the form that loops change.

`Slots` are flat arrays, each group's members followed by free places.
"""

import heapq
from itertools import pairwise

import msgspec
import numpy as np

from ..kernels.arrays import Int64, Slots
from ..problem.loads import group_loads

_AT_ONCE = 1 << 16
NOTHING = np.empty(0, dtype=np.int64)


class GroupingResult(msgspec.Struct, frozen=True):
    """group_of (n,): each sample's group, 0 .. groups - 1, or -1 for a sample in no group.

    left_over and oversize: ascending numbers of the samples that the algorithm did not place and
    of those that exceed a budget alone. The function called decides if they get groups.
    """

    group_of: Int64
    groups: int
    left_over: Int64 = NOTHING
    oversize: Int64 = NOTHING


def members(group_of: Int64, groups: int) -> list[list[int]]:
    """Return the sample numbers of each group, ascending.

    >>> members(np.array([1, 0, 1, -1]), 3)
    [[1], [0, 2], []]
    """
    # Those in no group come first.
    order = np.argsort(group_of, kind="stable")[np.count_nonzero(group_of < 0) :]
    edges = np.searchsorted(group_of[order], np.arange(groups + 1)).tolist()
    numbers: list[int] = []
    # Not all at once: to make a list of a million numbers holds Python's lock for 25 ms.
    for begin in range(0, len(order), _AT_ONCE):
        numbers += order[begin : begin + _AT_ONCE].tolist()
    return [numbers[begin:end] for begin, end in pairwise(edges)]


def make_slots(costs: Int64, group_of: Int64, groups: int, spare: int) -> Slots:
    """Return the members of every group, ascending, each group followed by `spare` free places."""
    count = np.bincount(group_of, minlength=groups)
    room = count + spare
    start = np.concatenate(([0], np.cumsum(room)))
    items = np.full(start[-1], -1, dtype=np.int64)
    order = np.argsort(group_of, kind="stable")
    # By how much each group begins later than it would without free places.
    moved = start[:-1] - (np.cumsum(count) - count)
    items[np.arange(len(order)) + moved[group_of[order]]] = order
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


def split_largest(sizes: Int64, group_of: Int64, chosen: Int64, parts: int) -> tuple[Int64, Int64]:
    """Return group_of and `parts` group numbers: those chosen, and new ones for their halves.

    sizes (n,): one number per sample. The largest chosen group of two or more samples is cut into
    two of about the same size, repeatedly. New groups are empty only where no group of two
    samples is left; they are numbered from the highest in use on.

    >>> sizes, group_of = np.array([3, 2, 1, 9]), np.array([0, 0, 0, 1])
    >>> [array.tolist() for array in split_largest(sizes, group_of, np.array([0, 1]), parts=4)]
    [[0, 2, 3, 1], [0, 1, 2, 3]]
    """
    missing = parts - len(chosen)
    if missing <= 0:
        return group_of, chosen
    used = int(max(group_of.max(initial=-1), chosen.max(initial=-1))) + 1
    new = np.arange(used, used + missing, dtype=np.int64)
    total = group_loads(sizes[:, None], group_of, used)[:, 0]
    count = np.bincount(group_of[group_of >= 0], minlength=used)
    several = chosen[count[chosen] > 1]
    # Each cut takes the largest group left, so only the `missing` largest can be cut.
    largest = several[np.lexsort((several, -total[several]))[:missing]]
    held = members(np.where(np.isin(group_of, largest), group_of, -1), used)
    heap = [(-int(total[k]), k) for k in largest.tolist()]
    heapq.heapify(heap)
    group_of = group_of.copy()
    for number in new.tolist():
        if not heap:
            break
        _, group = heapq.heappop(heap)
        (first, second), loads = _halves(sizes, held[group])
        held[group] = first
        held.append(second)
        group_of[second] = number
        for part, load in zip((group, number), loads, strict=True):
            if len(held[part]) > 1:
                heapq.heappush(heap, (-load, part))
    return group_of, np.concatenate([chosen, new])


def _halves(sizes: Int64, group: list[int]) -> tuple[tuple[list[int], list[int]], list[int]]:
    """Split samples into two halves of about the same size, largest first to the smaller.

    group: ascending, as the halves are; returned with these are their sizes.
    """
    # Taken out of the array at once: one by one, each becomes an object of numpy's first.
    size_of: dict[int, int] = dict(zip(group, sizes[group].tolist(), strict=True))
    halves: tuple[list[int], list[int]] = ([], [])
    loads = [0, 0]
    # Those of one size stay in the order of their numbers.
    for item in sorted(group, key=size_of.__getitem__, reverse=True):
        side = int((loads[1], len(halves[1])) < (loads[0], len(halves[0])))
        halves[side].append(item)
        loads[side] += size_of[item]
    return (sorted(halves[0]), sorted(halves[1])), loads
