"""The loops of the grouping ISF: its random order of samples, and next-fit with the filter.

The shuffle here is ISF's own; the order of an epoch is made in problem/shuffle.py.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Vector, Word
    from .swap import _BITS, _MIX, _STEP

_LAST_MIX = cython.declare(Word, 0x94D049BB133111EB)


def shuffle(items: Vector, seed: Word) -> None:
    """Shuffle in place: Fisher-Yates, drawing from splitmix64 (Steele, Lea, Flood 2014)."""
    state: Word = seed
    with cython.nogil:
        for last in range(items.shape[0] - 1, 0, -1):
            state = (state + _STEP) & _BITS
            mixed: Word = (state ^ (state >> 30)) * _MIX & _BITS
            mixed = (mixed ^ (mixed >> 27)) * _LAST_MIX & _BITS
            mixed = mixed ^ (mixed >> 31)
            partner: Int = mixed % (last + 1)
            moved = items[last]
            items[last] = items[partner]
            items[partner] = moved


def sample_and_filter(
    items: Vector, costs: Matrix, budgets: Vector, targets: Vector, first: Int, group_of: Vector
) -> tuple[int, int]:
    """Run one iteration over items in their order; number the groups kept from `first` on.

    Next-fit within budgets; a group is kept if any resource reaches its target, and its members
    get its number in group_of. Items of dropped groups are moved to the front of `items`. Returns
    (groups so far, items left).
    """
    size, resources = items.shape[0], costs.shape[1]
    load: Vector = np.zeros(resources, dtype=np.int64)
    groups: Int = first
    left: Int = 0
    begin: Int = 0
    full: Flag
    reached: Flag
    with cython.nogil:
        for here in range(size + 1):
            # One step behind the last item closes the last group.
            full = here == size
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
                    # `left` never passes `member`: the front that it writes to has been read
                    if reached:
                        group_of[items[member]] = groups
                    else:
                        items[left] = items[member]
                        left += 1
                groups += reached
                begin = here
            if here < size:
                for r in range(resources):
                    load[r] += costs[items[here], r]
    return groups, left
