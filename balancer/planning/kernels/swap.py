"""Compiled two-ended swaps: groups from both ends of the load scale exchange their best pair.

Groups lie in slots: slots[start[g] : start[g] + count[g]] are the items of group g, with free
room up to start[g + 1]. Costs are scaled (`scale.scaled`), so squares fit in 64 bits.
"""

import numpy as np

from .arrays import Int64
from .jit import compiled

_DIFFERENCE = 2**29
_TAIL = 16
_QUIET = 8


@compiled
def two_ended(
    slots: Int64,
    start: Int64,
    count: Int64,
    loads: Int64,
    costs: Int64,
    budgets: Int64,
    active: Int64,
    rounds: int,
    seed: int,
    moves: bool,
    look: int,
) -> int:
    """Pair the most loaded groups with the least, apply each pair's best exchange; repeat.

    Each round sorts the active groups by one view of their loads and pairs the ends; every
    fourth pairs the few farthest from the middle with many others. moves: items may also go one
    way. At most `look` items of a group are tried in a pair. Returns the exchanges made.
    """
    size = active.size
    half = size // 2
    state = np.uint64(seed)
    gap = np.empty(costs.shape[1], dtype=np.int64)
    changes, quiet = 0, 0
    for turn in range(rounds):
        ends, down = sort_by_view(loads, active, turn)
        state += np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(27))
        tails = turn % 4 == 2
        tail = size // _TAIL + 1 if tails else half
        turned = size - tail if tails else half
        span = size if tails else (size // 8 + 1 if turn >= 4 else 1)
        shift = np.int64(mixed % np.uint64(span))
        before = changes
        for x in range(half):
            near, far = x % tail, (x + shift) % turned
            if tails and down:
                high, low = active[ends[size - 1 - far]], active[ends[near]]
            else:
                high, low = active[ends[size - 1 - near]], active[ends[far]]
            give, take = best_exchange(
                slots, start, count, loads, costs, budgets, high, low, gap, turn, moves, look
            )
            if give < 0 and take < 0:
                continue
            if give < 0 and start[high] + count[high] == start[high + 1]:
                continue
            if take < 0 and start[low] + count[low] == start[low + 1]:
                continue
            exchange(slots, start, count, loads, costs, high, low, give, take)
            changes += 1
        quiet = quiet + 1 if changes == before else 0
        if quiet == _QUIET:
            break
    return changes


@compiled
def sort_by_view(loads: Int64, active: Int64, turn: int) -> tuple[Int64, bool]:
    """Return places in active by ascending load, and whether the low end is the farther one.

    The view is, in turns, the resource that deviates most, the others, and their difference.
    """
    size, resources = active.size, loads.shape[1]
    widest, most = 0, np.int64(-1)
    for r in range(resources):
        mean = np.int64(0)
        for x in range(size):
            mean += loads[active[x], r]
        mean //= size
        spread = np.int64(0)
        for x in range(size):
            spread += abs(loads[active[x], r] - mean)
        if spread > most:
            widest, most = r, spread
    key = np.empty(size, dtype=np.int64)
    for x in range(size):
        main, rest = loads[active[x], widest], np.int64(0)
        for r in range(resources):
            if r != widest:
                rest += loads[active[x], r]
        if turn % 4 == 1:
            key[x] = rest + main // 4
        elif turn % 4 == 3:
            key[x] = main - rest
        else:
            key[x] = main
    ends = np.argsort(key, kind="mergesort")
    middle = key[ends[size // 2]] + key[ends[(size - 1) // 2]]
    down = middle - 2 * key[ends[0]] > 2 * key[ends[size - 1]] - middle
    return ends, down


@compiled
def best_exchange(
    slots: Int64,
    start: Int64,
    count: Int64,
    loads: Int64,
    costs: Int64,
    budgets: Int64,
    high: int,
    low: int,
    gap: Int64,
    turn: int,
    moves: bool,
    look: int,
) -> tuple[int, int]:
    """Return the places in slots of the items that high gives and low gives back; -1 for none.

    For loads a, b and an exchange that shifts d from a to b, the squares fall by 2 d (a - b - d),
    summed over resources: no mean is needed. (-1, -1) if no exchange lowers them within budgets.
    gap (resources,) is scratch.
    """
    resources = costs.shape[1]
    for r in range(resources):
        gap[r] = min(max(loads[high, r] - loads[low, r], -_DIFFERENCE), _DIFFERENCE)
    best, give, take = np.int64(0), -1, -1
    first_high = start[high] + turn % max(1, count[high] - look + 1)
    first_low = start[low] + turn % max(1, count[low] - look + 1)
    for p in range(-1, min(count[high], look)):
        if p < 0 and (not moves or count[low] < 2):
            continue
        for q in range(-1, min(count[low], look)):
            if q < 0 and (p < 0 or not moves or count[high] < 2):
                continue
            gain, fits = np.int64(0), True
            for r in range(resources):
                by = np.int64(0)
                if p >= 0:
                    by += costs[slots[first_high + p], r]
                if q >= 0:
                    by -= costs[slots[first_low + q], r]
                gain += by * (by - gap[r])
                if loads[high, r] - by > budgets[r] or loads[low, r] + by > budgets[r]:
                    fits = False
                    break
            if fits and gain < best:
                best = gain
                give = first_high + p if p >= 0 else -1
                take = first_low + q if q >= 0 else -1
    return give, take


@compiled
def exchange(
    slots: Int64,
    start: Int64,
    count: Int64,
    loads: Int64,
    costs: Int64,
    high: int,
    low: int,
    give: int,
    take: int,
) -> None:
    """Move the item at place give from high to low and the one at take back; -1 for none."""
    given = slots[give] if give >= 0 else -1
    taken = slots[take] if take >= 0 else -1
    for r in range(costs.shape[1]):
        by = np.int64(0)
        if given >= 0:
            by += costs[given, r]
        if taken >= 0:
            by -= costs[taken, r]
        loads[high, r] -= by
        loads[low, r] += by
    if given >= 0 and taken >= 0:
        slots[give], slots[take] = taken, given
    elif given >= 0:
        slots[start[low] + count[low]] = given
        count[low] += 1
        count[high] -= 1
        slots[give] = slots[start[high] + count[high]]
    else:
        slots[start[high] + count[high]] = taken
        count[high] += 1
        count[low] -= 1
        slots[take] = slots[start[low] + count[low]]
