"""Compiled loops of ISF: a seeded shuffle, and next-fit with the filter on full groups."""

import numpy as np

from .arrays import Int64
from .jit import compiled


@compiled
def shuffle(items: Int64, seed: int) -> None:
    """Fisher-Yates in place, drawing from splitmix64 (Steele, Lea, Flood 2014) started at seed."""
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
    """One iteration over items in their order; group numbers from `first` go into group_of.

    Next-fit within budgets; a group is kept if any resource reaches its target. Items of dropped
    groups are moved to the front of `items`. Returns (groups so far, items left).
    """
    resources = costs.shape[1]
    load = np.zeros(resources, dtype=np.int64)
    groups, left, begin = first, 0, 0
    for here in range(items.size + 1):
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
