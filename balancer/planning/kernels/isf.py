"""Compiled loops of the grouping ISF: its random order of samples, and next-fit with the filter.

The shuffle here is ISF's own; the order of an epoch is made in problem/shuffle.py.
"""

import numpy as np

from .arrays import Int64
from .jit import compiled


@compiled
def shuffle(items: Int64, seed: int) -> None:
    """Shuffle in place: Fisher-Yates, drawing from splitmix64 (Steele, Lea, Flood 2014)."""
    state = np.uint64(seed)
    for last in range(items.size - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        mixed = state
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        other = np.int64(mixed % np.uint64(last + 1))
        kept = items[last]
        items[last] = items[other]
        items[other] = kept


@compiled
def sample_and_filter(
    items: Int64, costs: Int64, budgets: Int64, targets: Int64, first: int, group_of: Int64
) -> tuple[int, int]:
    """Run one iteration over items in their order; number the groups kept from `first` on.

    Next-fit within budgets; a group is kept if any resource reaches its target, and its members
    get its number in group_of. Items of dropped groups are moved to the front of `items`. Returns
    (groups so far, items left).
    """
    resources = costs.shape[1]
    load = np.zeros(resources, dtype=np.int64)
    groups, left, begin = first, 0, 0
    for here in range(items.size + 1):
        # One step behind the last item closes the last group.
        full = here == items.size
        if not full:
            for r in range(resources):
                if load[r] + costs[items[here], r] > budgets[r]:
                    full = True
        if full and here > begin:
            reached = False
            for r in range(resources):
                if load[r] >= targets[r]:
                    reached = True
                load[r] = 0
            for member in range(begin, here):
                # `left` never passes `member`: the front that it writes to has been read already
                if reached:
                    group_of[items[member]] = groups
                else:
                    items[left] = items[member]
                    left += 1
            groups += reached
            begin = here
        if here < items.size:
            for r in range(resources):
                load[r] += costs[items[here], r]
    return groups, left
