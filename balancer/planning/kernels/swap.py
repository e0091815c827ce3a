"""Two-ended swaps: groups from both ends of the load scale exchange their best pair.

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

Squares of deviations count a group that is far below the mean as much as one that is far above it.
But only what is above makes others wait: a group with one very long text should have few images and
no more text than others, while squares would rather have it a little over in one and a little under
in the other. So the last rounds look at squared *excess*, what is above the mean, alone.

Costs are scaled (`problem.loads.scale_costs`), so squares fit in 64 bits.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Slots, Vector, Word

# The views, in the order of rounds: round % VIEWS is one of these.
VIEWS = cython.declare(Int, 4)
VIEW_MAIN = cython.declare(Int, 0)  # by the resource that deviates most, called main below
VIEW_REST = cython.declare(Int, 1)  # by the sum of the other resources, and a quarter of main
VIEW_TAILS = cython.declare(Int, 2)  # by main; the groups of the longer tail meet many others
# by main minus the others: groups that are full in different resources
VIEW_DIFFERENCE = cython.declare(Int, 3)

# differences of loads are cut here, so that gains stay in 64 bits
_DIFFERENCE = cython.declare(Int, 2**29)
_TAIL = cython.declare(Int, 16)  # one group in 16 is in the tail
_RUN = cython.declare(Int, 16)  # places sorted by insertion, before runs are merged
_SPREAD = cython.declare(Int, 8)  # partners are shifted by up to an eighth of the groups
# rounds without an exchange, two of each view, after which no more are tried
_QUIET = cython.declare(Int, 8)
_MEAN = cython.declare(Int, 2**20)  # of scaled loads (`problem.loads.scale_costs`)
# excess is cut here, so that sums of squares stay in 64 bits
_MOST_EXCESS = cython.declare(Int, 2**27)
# splitmix64's constants, and all 64 bits of its numbers, which wrap
_STEP = cython.declare(Word, 0x9E3779B97F4A7C15)
_MIX = cython.declare(Word, 0xBF58476D1CE4E5B9)
_BITS = cython.declare(Word, 0xFFFFFFFFFFFFFFFF)


def two_ended(
    slots: Slots, costs: Matrix, budgets: Vector, active: Vector, rounds: Int, seed: Word,
    moves: Flag, candidates: Int, excess_from: Int,
) -> int:  # fmt: skip
    """Pair the most loaded groups with the least, apply each pair's best exchange; repeat.

    costs (n, resources), budgets (resources,), active: numbers of the groups that take part.
    moves: items may also go one way. At most `candidates` items of a group are tried in a pair.
    From round `excess_from` on only what is above the mean counts. Changes slots; returns the
    number of exchanges made.
    """
    items: Vector = slots.items
    start: Vector = slots.start
    counts: Vector = slots.counts
    loads: Matrix = slots.loads
    size = active.shape[0]
    gap: Vector = np.empty(costs.shape[1], dtype=np.int64)
    key: Vector = np.empty(size, dtype=np.int64)
    ends: Vector = np.empty(size, dtype=np.int64)
    spare: Vector = np.empty(size, dtype=np.int64)
    state: Word = seed
    changes: Int = 0
    quiet: Int = 0
    give: Int
    take: Int
    with cython.nogil:
        for turn in range(rounds):
            low_end_farther = sort_by_view(loads, active, turn, key, ends, spare)
            # splitmix64 with two of its three mixing steps
            state = (state + _STEP) & _BITS
            mixed: Word = (state ^ (state >> 30)) * _MIX & _BITS
            mixed = mixed ^ (mixed >> 27)
            before = changes
            for x in range(size // 2):
                bottom, top = find_pair(x, size, turn, mixed, low_end_farther)
                high, low = active[ends[top]], active[ends[bottom]]
                give, take = best_exchange(
                    items, start, counts, loads, costs, budgets, high, low, gap, turn, moves,
                    candidates, turn >= excess_from,
                )  # fmt: skip
                if can_exchange(start, counts, high, low, give, take):
                    exchange(items, start, counts, loads, costs, high, low, give, take)
                    changes += 1
            quiet = quiet + 1 if changes == before else 0
            if quiet == _QUIET:
                break
    return changes


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def sort_by_view(
    loads: Matrix, active: Vector, turn: Int, key: Vector, ends: Vector, spare: Vector
) -> Flag:
    """Fill ends with places in active by ascending load in the round's view; key, spare: scratch.

    Returns True if the lowest load is farther from the median than the highest.
    """
    size = active.shape[0]
    main = most_uneven(loads, active)
    view = turn % VIEWS
    for x in range(size):
        load = loads[active[x], main]
        others_load: Int = 0
        for r in range(loads.shape[1]):
            if r != main:
                others_load += loads[active[x], r]
        if view == VIEW_REST:
            key[x] = others_load + load // 4
        elif view == VIEW_DIFFERENCE:
            key[x] = load - others_load
        else:
            key[x] = load
    if cython.compiled:
        sort(key, ends, spare)
    else:
        ends[:] = np.argsort(key, kind="stable")
    # twice the median, so that it is whole
    middle = key[ends[size // 2]] + key[ends[(size - 1) // 2]]
    is_low_end: Flag = middle - 2 * key[ends[0]] > 2 * key[ends[size - 1]] - middle
    return is_low_end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def sort(key: Vector, ends: Vector, spare: Vector) -> cython.void:
    """Fill ends with the places of keys in ascending order, as a stable sort leaves them.

    Short runs by insertion, then runs of twice the length by merging.
    """
    size: Int = key.shape[0]
    width: Int = _RUN
    for x in range(size):
        first, at = x - x % _RUN, x
        while at > first and key[ends[at - 1]] > key[x]:
            ends[at] = ends[at - 1]
            at -= 1
        ends[at] = x
    while width < size:
        begin: Int = 0
        while begin + width < size:
            merge(key, ends, spare, begin, begin + width, min(begin + 2 * width, size))
            begin += 2 * width
        width *= 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def merge(
    key: Vector, ends: Vector, spare: Vector, begin: Int, middle: Int, end: Int
) -> cython.void:
    """Merge two sorted runs of ends; of equal keys those of the first go ahead."""
    if key[ends[middle - 1]] <= key[ends[middle]]:
        return
    for x in range(begin, middle):
        spare[x] = ends[x]
    left, right, at = begin, middle, begin
    while left < middle:
        if right < end and key[ends[right]] < key[spare[left]]:
            ends[at] = ends[right]
            right += 1
        else:
            ends[at] = spare[left]
            left += 1
        at += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def most_uneven(loads: Matrix, active: Vector) -> Int:
    """Return the resource whose loads deviate most from their mean; the first of several."""
    widest: Int = 0
    most: Int = -1
    for r in range(loads.shape[1]):
        mean: Int = 0
        for x in range(active.shape[0]):
            mean += loads[active[x], r]
        mean //= active.shape[0]
        spread: Int = 0
        for x in range(active.shape[0]):
            spread += abs(loads[active[x], r] - mean)
        if spread > most:
            widest, most = r, spread
    return widest


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_pair(x: Int, size: Int, turn: Int, random: Word, low_end_farther: Flag) -> tuple[Int, Int]:
    """Return the places, in ascending order of load, of the low and the high group of pair x.

    There are size // 2 pairs. In most views pair x is the x-th of one end and the x-th of the
    other, shifted by a random amount from the second use of the views on. In the view of the
    tails, the groups of the tail at the farther end are paired again and again, with others
    chosen at random.
    """
    half = size // 2
    if turn % VIEWS == VIEW_TAILS:
        tail = size // _TAIL + 1
        shift: Int = random % size
        near, far = x % tail, (x + shift) % (size - tail)
        if low_end_farther:
            return near, size - 1 - far
    else:
        span: Int = size // _SPREAD + 1 if turn >= VIEWS else 1
        shift = random % span
        near, far = x % half, (x + shift) % half
    return far, size - 1 - near


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def best_exchange(
    items: Vector, start: Vector, counts: Vector, loads: Matrix, costs: Matrix, budgets: Vector,
    high: Int, low: Int, gap: Vector, turn: Int, moves: Flag, candidates: Int, by_excess: Flag,
) -> tuple[Int, Int]:  # fmt: skip
    """Return the places in slots of the items that high gives and low gives back; -1 for none.

    (-1, -1) if no exchange lowers the squares, of loads or of excess, within budgets. Of groups
    with more than `candidates` items, the round number decides which are tried. gap (resources,) is
    scratch.
    """
    best: Int = 0
    give: Int = -1
    take: Int = -1
    if by_excess:
        best = squared_excess_after(loads, costs, budgets, high, low, -1, -1)
        if best <= 0:
            return give, take
    for r in range(costs.shape[1]):
        gap[r] = min(max(loads[high, r] - loads[low, r], -_DIFFERENCE), _DIFFERENCE)
    first_high = start[high] + turn % max(1, counts[high] - candidates + 1)
    first_low = start[low] + turn % max(1, counts[low] - candidates + 1)
    # Index -1 is no item: then the other one moves, unless it is its group's only one.
    from_high = -1 if moves and counts[low] > 1 else 0
    from_low = -1 if moves and counts[high] > 1 else 0
    for p in range(from_high, min(counts[high], candidates)):
        sent = items[first_high + p] if p >= 0 else -1
        for q in range(from_low if p >= 0 else 0, min(counts[low], candidates)):
            taken = items[first_low + q] if q >= 0 else -1
            if by_excess:
                after = squared_excess_after(loads, costs, budgets, high, low, sent, taken)
                is_better: Flag = 0 <= after < best
            else:
                after = change_of_squares(loads, costs, budgets, gap, high, low, sent, taken)
                is_better = after < best
            if is_better:
                best = after
                give = first_high + p if p >= 0 else -1
                take = first_low + q if q >= 0 else -1
    return give, take


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def change_of_squares(
    loads: Matrix, costs: Matrix, budgets: Vector, gap: Vector, high: Int, low: Int, sent: Int,
    taken: Int,
) -> Int:  # fmt: skip
    """Return half of what an exchange adds to the squares; 0 if it does not fit the budgets.

    gap (resources,): loads of high minus those of low.
    """
    change: Int = 0
    for r in range(costs.shape[1]):
        by = compute_shift(costs, sent, taken, r)
        change += by * (by - gap[r])
        if loads[high, r] - by > budgets[r] or loads[low, r] + by > budgets[r]:
            return 0
    return change


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def squared_excess_after(
    loads: Matrix, costs: Matrix, budgets: Vector, high: Int, low: Int, sent: Int, taken: Int
) -> Int:
    """Return both groups' squared excess after an exchange (item -1: none); -1 over budgets."""
    squared_excess: Int = 0
    for r in range(costs.shape[1]):
        by = compute_shift(costs, sent, taken, r)
        new_high, new_low = loads[high, r] - by, loads[low, r] + by
        if new_high > budgets[r] or new_low > budgets[r]:
            return -1
        high_excess: Int = min(max(new_high - _MEAN, 0), _MOST_EXCESS)
        low_excess: Int = min(max(new_low - _MEAN, 0), _MOST_EXCESS)
        squared_excess += high_excess * high_excess + low_excess * low_excess
    return squared_excess


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def compute_shift(costs: Matrix, sent: Int, taken: Int, r: Int) -> Int:
    """Return how much of resource r an exchange of two items shifts; item -1 for none."""
    by: Int = 0
    if sent >= 0:
        by += costs[sent, r]
    if taken >= 0:
        by -= costs[taken, r]
    return by


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def can_exchange(start: Vector, counts: Vector, high: Int, low: Int, give: Int, take: Int) -> Flag:
    """Return True if there is something to exchange, and a free place for an item that moves."""
    if give < 0 and take < 0:
        return False
    has_place: Flag = True
    if give < 0:
        has_place = start[high] + counts[high] < start[high + 1]
    elif take < 0:
        has_place = start[low] + counts[low] < start[low + 1]
    return has_place


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def exchange(
    items: Vector, start: Vector, counts: Vector, loads: Matrix, costs: Matrix, high: Int, low: Int,
    give: Int, take: Int,
) -> cython.void:  # fmt: skip
    """Move the item at place give from high to low and the one at take back; -1 for none."""
    sent = items[give] if give >= 0 else -1
    taken = items[take] if take >= 0 else -1
    for r in range(costs.shape[1]):
        by = compute_shift(costs, sent, taken, r)
        loads[high, r] -= by
        loads[low, r] += by
    if sent >= 0 and taken >= 0:
        items[give], items[take] = taken, sent
    elif sent >= 0:
        # behind the members of low; the last member of high takes the free place
        items[start[low] + counts[low]] = sent
        counts[low] += 1
        counts[high] -= 1
        items[give] = items[start[high] + counts[high]]
    else:
        items[start[high] + counts[high]] = taken
        counts[high] += 1
        counts[low] -= 1
        items[take] = items[start[low] + counts[low]]
