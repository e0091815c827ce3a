"""The compiled search for an exchange of two groups that lowers what is above the mean load.

Squares of deviations count a group that is far below the mean as much as one that is far above it.
But only what is above makes others wait: a group with one very long text should have few images and
no more text than others, while squares would rather have it a little over in one and a little under
in the other. So the last rounds of the swaps (kernels/swap.py) look at squared excess alone.
"""

import numpy as np

from .arrays import Int64, Slots
from .jit import compiled, inlined

MEAN = 2**20  # of scaled loads (`problem.scale.scale_costs`)
_MOST = 2**27  # excess is cut here, so that sums of squares stay in 64 bits


@compiled
def lower_excess(
    slots: Slots, costs: Int64, budgets: Int64, high: int, low: int, turn: int, moves: bool,
    candidates: int,
) -> tuple[int, int]:  # fmt: skip
    """Return the places in slots of the items that high gives and low gives back; -1 for none.

    As `swap.best_exchange`, of which the squared excess is the measure.
    """
    start, count = slots.start, slots.counts
    best, give, take = excess_after(slots.loads, costs, budgets, high, low, -1, -1), -1, -1
    if best == 0:
        return give, take
    first_high = start[high] + turn % max(1, count[high] - candidates + 1)
    first_low = start[low] + turn % max(1, count[low] - candidates + 1)
    # Index -1 is no item: then the other one moves, unless it is its group's only one.
    from_high = -1 if moves and count[low] > 1 else 0
    from_low = -1 if moves and count[high] > 1 else 0
    for p in range(from_high, min(count[high], candidates)):
        given = slots.items[first_high + p] if p >= 0 else -1
        for q in range(from_low if p >= 0 else 0, min(count[low], candidates)):
            taken = slots.items[first_low + q] if q >= 0 else -1
            after = excess_after(slots.loads, costs, budgets, high, low, given, taken)
            if 0 <= after < best:
                best = after
                give = first_high + p if p >= 0 else -1
                take = first_low + q if q >= 0 else -1
    return give, take


@inlined
def excess_after(
    loads: Int64, costs: Int64, budgets: Int64, high: int, low: int, given: int, taken: int
) -> np.int64:
    """Return both groups' squared excess after an exchange (item -1: none); -1 over budgets."""
    after = np.int64(0)
    for r in range(costs.shape[1]):
        by = np.int64(0)
        if given >= 0:
            by += costs[given, r]
        if taken >= 0:
            by -= costs[taken, r]
        left, right = loads[high, r] - by, loads[low, r] + by
        if left > budgets[r] or right > budgets[r]:
            return np.int64(-1)
        over, under = min(max(left - MEAN, 0), _MOST), min(max(right - MEAN, 0), _MOST)
        after += over * over + under * under
    return after
