"""Compiled two-ended swaps: groups from both ends of the load scale exchange their best pair.

The aim is even loads in every resource, measured by the sum of squared loads, since the total of
each resource is fixed and squares then are least where all loads are equal. If an exchange shifts
d from a group of load a to one of load b, their squares change by

    (a - d)^2 + (b + d)^2 - a^2 - b^2 = 2 d (d - (a - b))

summed over resources. So exchanges between two groups can be compared without any mean, and the
best of a pair is found by trying the members of one against those of the other.

Trying all pairs of groups would be quadratic; instead each round sorts the groups by one *view* of
their loads and pairs the highest with the lowest. Views take turns, because groups that are equal
in one resource may differ in another: the resource that deviates most, the others, that resource
for the few groups in the tail, and the difference between it and the others. After each view has
been used once, partners are shifted by a random amount of up to an eighth of all groups, so that
a pair without a good exchange is not tried again and again.

Costs are scaled (`problem.scale.scale_costs`), so squares fit in 64 bits.
"""

import numpy as np

from .arrays import Int64, Slots
from .excess import lower_excess
from .jit import compiled, inlined

# The views, in the order of rounds: round % VIEWS is one of these.
VIEWS = 4
VIEW_MAIN = 0  # by the resource that deviates most, called main below
VIEW_REST = 1  # by the sum of the other resources, and a quarter of main
VIEW_TAILS = 2  # by main; the groups of the longer tail meet many others
VIEW_DIFFERENCE = 3  # by main minus the others: groups that are full in different resources

_DIFFERENCE = 2**29  # differences of loads are cut here, so that gains stay in 64 bits
_TAIL = 16  # one group in 16 is in the tail
_SPREAD = 8  # partners are shifted by up to an eighth of the groups
_QUIET = 8  # rounds without an exchange, two of each view, after which no more are tried


@compiled
def two_ended(
    slots: Slots, costs: Int64, budgets: Int64, active: Int64, rounds: int, seed: int, moves: bool,
    candidates: int, excess_from: int,
) -> int:  # fmt: skip
    """Pair the most loaded groups with the least, apply each pair's best exchange; repeat.

    costs (n, resources), budgets (resources,), active: numbers of the groups that take part.
    moves: items may also go one way. At most `candidates` items of a group are tried in a pair.
    From round `excess_from` on only what is above the mean counts (kernels/excess.py). Changes
    slots; returns the number of exchanges made.
    """
    half = active.size // 2
    state = np.uint64(seed)
    gap = np.empty(costs.shape[1], dtype=np.int64)
    changes, quiet = 0, 0
    for turn in range(rounds):
        ends, low_end_farther = sort_by_view(slots.loads, active, turn)
        # splitmix64 with two of its three mixing steps
        state += np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(27))
        before = changes
        for x in range(half):
            bottom, top = pair_of(x, active.size, turn, mixed, low_end_farther)
            high, low = active[ends[top]], active[ends[bottom]]
            if turn >= excess_from:
                give, take = lower_excess(slots, costs, budgets, high, low, turn, moves, candidates)
            else:
                give, take = best_exchange(
                    slots, costs, budgets, high, low, gap, turn, moves, candidates
                )
            if can_exchange(slots, high, low, give, take):
                exchange(slots, costs, high, low, give, take)
                changes += 1
        quiet = quiet + 1 if changes == before else 0
        if quiet == _QUIET:
            break
    return changes


@compiled
def sort_by_view(loads: Int64, active: Int64, turn: int) -> tuple[Int64, bool]:
    """Return places in active by ascending load in the round's view, and which end is farther.

    The second is True if the lowest load is farther from the median than the highest.
    """
    size, resources = active.size, loads.shape[1]
    main = most_uneven(loads, active)
    view = turn % VIEWS
    key = np.empty(size, dtype=np.int64)
    for x in range(size):
        load, rest = loads[active[x], main], np.int64(0)
        for r in range(resources):
            if r != main:
                rest += loads[active[x], r]
        if view == VIEW_REST:
            key[x] = rest + load // 4
        elif view == VIEW_DIFFERENCE:
            key[x] = load - rest
        else:
            key[x] = load
    ends = np.argsort(key, kind="mergesort")
    # twice the median, so that it is whole
    middle = key[ends[size // 2]] + key[ends[(size - 1) // 2]]
    low_end_farther = middle - 2 * key[ends[0]] > 2 * key[ends[size - 1]] - middle
    return ends, low_end_farther


@compiled
def most_uneven(loads: Int64, active: Int64) -> int:
    """Return the resource whose loads deviate most from their mean; the first of several."""
    widest, most = 0, np.int64(-1)
    for r in range(loads.shape[1]):
        mean = np.int64(0)
        for x in range(active.size):
            mean += loads[active[x], r]
        mean //= active.size
        spread = np.int64(0)
        for x in range(active.size):
            spread += abs(loads[active[x], r] - mean)
        if spread > most:
            widest, most = r, spread
    return widest


@inlined
def pair_of(
    x: int, size: int, turn: int, random: np.uint64, low_end_farther: bool
) -> tuple[np.int64 | int, np.int64 | int]:
    """Return the places, in ascending order of load, of the low and the high group of pair x.

    There are size // 2 pairs. In most views pair x is the x-th of one end and the x-th of the
    other, shifted by a random amount from the second use of the views on. In the view of the
    tails, the groups of the tail at the farther end are paired again and again, with others
    chosen at random.
    """
    half = size // 2
    if turn % VIEWS == VIEW_TAILS:
        tail = size // _TAIL + 1
        shift = np.int64(random % np.uint64(size))
        near, far = x % tail, (x + shift) % (size - tail)
        if low_end_farther:
            return near, size - 1 - far
    else:
        span = size // _SPREAD + 1 if turn >= VIEWS else 1
        shift = np.int64(random % np.uint64(span))
        near, far = x % half, (x + shift) % half
    return far, size - 1 - near


@compiled
def best_exchange(
    slots: Slots,
    costs: Int64,
    budgets: Int64,
    high: int,
    low: int,
    gap: Int64,
    turn: int,
    moves: bool,
    candidates: int,
) -> tuple[int, int]:
    """Return the places in slots of the items that high gives and low gives back; -1 for none.

    (-1, -1) if no exchange lowers the squares within budgets. Of groups with more than
    `candidates` items, the round number decides which are tried. gap (resources,) is scratch.
    """
    start, count, loads = slots.start, slots.counts, slots.loads
    for r in range(costs.shape[1]):
        gap[r] = min(max(loads[high, r] - loads[low, r], -_DIFFERENCE), _DIFFERENCE)
    first_high = start[high] + turn % max(1, count[high] - candidates + 1)
    first_low = start[low] + turn % max(1, count[low] - candidates + 1)
    # Index -1 is no item: then the other one moves, unless it is its group's only one.
    from_high = -1 if moves and count[low] > 1 else 0
    from_low = -1 if moves and count[high] > 1 else 0
    best, give, take = np.int64(0), -1, -1
    for p in range(from_high, min(count[high], candidates)):
        given = slots.items[first_high + p] if p >= 0 else -1
        for q in range(from_low if p >= 0 else 0, min(count[low], candidates)):
            taken = slots.items[first_low + q] if q >= 0 else -1
            change = change_of_squares(loads, costs, budgets, gap, high, low, given, taken)
            if change < best:
                best = change
                give = first_high + p if p >= 0 else -1
                take = first_low + q if q >= 0 else -1
    return give, take


@inlined
def change_of_squares(
    loads: Int64,
    costs: Int64,
    budgets: Int64,
    gap: Int64,
    high: int,
    low: int,
    given: int,
    taken: int,
) -> np.int64:
    """Return half of what an exchange adds to the squares; 0 if it does not fit the budgets.

    gap (resources,): loads of high minus those of low.
    """
    change = np.int64(0)
    for r in range(costs.shape[1]):
        by = shift_by(costs, given, taken, r)
        change += by * (by - gap[r])
        if loads[high, r] - by > budgets[r] or loads[low, r] + by > budgets[r]:
            return np.int64(0)
    return change


@inlined
def shift_by(costs: Int64, given: int, taken: int, r: int) -> np.int64:
    """Return how much of resource r an exchange of two items shifts; item -1 for none."""
    by = np.int64(0)
    if given >= 0:
        by += costs[given, r]
    if taken >= 0:
        by -= costs[taken, r]
    return by


@inlined
def can_exchange(slots: Slots, high: int, low: int, give: int, take: int) -> bool:
    """Return True if there is something to exchange, and a free place for an item that moves."""
    if give < 0 and take < 0:
        return False
    if give < 0:
        return bool(slots.start[high] + slots.counts[high] < slots.start[high + 1])
    if take < 0:
        return bool(slots.start[low] + slots.counts[low] < slots.start[low + 1])
    return True


@compiled
def exchange(slots: Slots, costs: Int64, high: int, low: int, give: int, take: int) -> None:
    """Move the item at place give from high to low and the one at take back; -1 for none."""
    items, start, count = slots.items, slots.start, slots.counts
    given = items[give] if give >= 0 else -1
    taken = items[take] if take >= 0 else -1
    for r in range(costs.shape[1]):
        by = shift_by(costs, given, taken, r)
        slots.loads[high, r] -= by
        slots.loads[low, r] += by
    if given >= 0 and taken >= 0:
        items[give], items[take] = taken, given
    elif given >= 0:
        # behind the members of low; the last member of high takes the free place
        items[start[low] + count[low]] = given
        count[low] += 1
        count[high] -= 1
        items[give] = items[start[high] + count[high]]
    else:
        items[start[high] + count[high]] = taken
        count[high] += 1
        count[low] -= 1
        items[take] = items[start[low] + count[low]]
