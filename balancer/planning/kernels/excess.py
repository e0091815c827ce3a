"""The search for an exchange of two groups that lowers what is above the mean load.

Squares of deviations count a group that is far below the mean as much as one that is far above it.
But only what is above makes others wait: a group with one very long text should have few images and
no more text than others, while squares would rather have it a little over in one and a little under
in the other. So the last rounds of the swaps (kernels/swap.py) look at squared excess alone.
"""

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Vector

MEAN = cython.declare(Int, 2**20)  # of scaled loads (`problem.loads.scale_costs`)
# excess is cut here, so that sums of squares stay in 64 bits
_MOST_EXCESS = cython.declare(Int, 2**27)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def squared_excess_after(
    loads: Matrix, costs: Matrix, budgets: Vector, high: Int, low: Int, sent: Int, taken: Int
) -> Int:
    """Return both groups' squared excess after an exchange (item -1: none); -1 over budgets."""
    squared_excess: Int = 0
    for r in range(costs.shape[1]):
        shift: Int = 0
        if sent >= 0:
            shift += costs[sent, r]
        if taken >= 0:
            shift -= costs[taken, r]
        new_high, new_low = loads[high, r] - shift, loads[low, r] + shift
        if new_high > budgets[r] or new_low > budgets[r]:
            return -1
        high_excess: Int = min(max(new_high - MEAN, 0), _MOST_EXCESS)
        low_excess: Int = min(max(new_low - MEAN, 0), _MOST_EXCESS)
        squared_excess += high_excess * high_excess + low_excess * low_excess
    return squared_excess


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_excess_exchange(
    items: Vector, start: Vector, counts: Vector, loads: Matrix, costs: Matrix, budgets: Vector,
    high: Int, low: Int, turn: Int, moves: Flag, candidates: Int,
) -> tuple[Int, Int]:  # fmt: skip
    """Return the places in slots of the items that high gives and low gives back; -1 for none.

    As `swap.best_exchange`, of which the squared excess is the measure.
    """
    best: Int = squared_excess_after(loads, costs, budgets, high, low, -1, -1)
    give: Int = -1
    take: Int = -1
    if best == 0:
        return give, take
    first_high = start[high] + turn % max(1, counts[high] - candidates + 1)
    first_low = start[low] + turn % max(1, counts[low] - candidates + 1)
    # Index -1 is no item: then the other one moves, unless it is its group's only one.
    from_high = -1 if moves and counts[low] > 1 else 0
    from_low = -1 if moves and counts[high] > 1 else 0
    for p in range(from_high, min(counts[high], candidates)):
        sent = items[first_high + p] if p >= 0 else -1
        for q in range(from_low if p >= 0 else 0, min(counts[low], candidates)):
            taken = items[first_low + q] if q >= 0 else -1
            after = squared_excess_after(loads, costs, budgets, high, low, sent, taken)
            if 0 <= after < best:
                best = after
                give = first_high + p if p >= 0 else -1
                take = first_low + q if q >= 0 else -1
    return give, take
