"""Compiled loops of partitioning: the largest-difference method, and descent on the maxima."""

import numpy as np

from .arrays import Int64
from .jit import compiled
from .swap import exchange


@compiled
def place_vectors(order: Int64, costs: Int64, parts: int, room: Int64, part_of: Int64) -> Int64:
    """Longest processing time for vectors: each item to the part with the least score after it.

    Score: (resources + 2) max - sum of the part's loads. room (parts,): items a part may still
    take. Fills part_of and returns loads (parts, resources).
    """
    resources = costs.shape[1]
    weight = resources + 2
    loads = np.zeros((parts, resources), dtype=np.int64)
    for item in order:
        best, found = np.int64(2**62), 0
        for part in range(parts):
            if room[part] == 0:
                continue
            top, whole = np.int64(0), np.int64(0)
            for r in range(resources):
                load = loads[part, r] + costs[item, r]
                whole += load
                if load > top:
                    top = load
            if weight * top - whole < best:
                best, found = weight * top - whole, part
        part_of[item] = found
        room[found] -= 1
        for r in range(resources):
            loads[found, r] += costs[item, r]
    return loads


@compiled
def lower_maxima(
    slots: Int64,
    start: Int64,
    count: Int64,
    loads: Int64,
    costs: Int64,
    moves: bool,
    tries: int,
) -> int:
    """Lower the largest load of each resource by swaps and moves until none helps.

    Resources take turns: the part with the largest load of one makes the best swap that lowers
    it (`best_lowering`). slots, start and count as in kernels_swap. At most `tries` searches.
    Returns the changes made.
    """
    parts, resources = loads.shape
    top = np.empty(resources, dtype=np.int64)
    changes, stuck, turn = 0, 0, 0
    while stuck < resources and turn < tries:
        r = turn % resources
        turn += 1
        for k in range(resources):
            top[k] = loads[0, k]
            for part in range(parts):
                top[k] = max(top[k], loads[part, k])
        high = 0
        while loads[high, r] != top[r]:
            high += 1
        low, give, take = best_lowering(slots, start, count, loads, costs, top, high, r, moves)
        if low < 0 or (take < 0 and start[low] + count[low] == start[low + 1]):
            stuck += 1
            continue
        stuck = 0
        changes += 1
        exchange(slots, start, count, loads, costs, high, low, give, take)
    return changes


@compiled
def best_lowering(
    slots: Int64,
    start: Int64,
    count: Int64,
    loads: Int64,
    costs: Int64,
    top: Int64,
    high: int,
    r: int,
    moves: bool,
) -> tuple[int, int, int]:
    """Return (part, place given, place taken) of the best exchange with high; part -1 for none.

    Both parts must end below top[r], and no other resource k above top[k]; of these exchanges
    the one whose worse part holds least of r is best. Place taken -1: the item only moves.
    """
    parts, resources = loads.shape
    best, best_low, give, take = top[r], -1, -1, -1
    for low in range(parts):
        if low == high or loads[low, r] >= top[r]:
            continue
        for p in range(count[high]):
            one = slots[start[high] + p]
            last = count[low] + 1 if moves and count[high] > 1 else count[low]
            for q in range(last):
                by = costs[one, r]
                if q < count[low]:
                    by -= costs[slots[start[low] + q], r]
                worst = max(loads[high, r] - by, loads[low, r] + by)
                if by <= 0 or worst >= best:
                    continue
                fits = True
                for k in range(resources):
                    other = costs[one, k]
                    if q < count[low]:
                        other -= costs[slots[start[low] + q], k]
                    if loads[high, k] - other > top[k] or loads[low, k] + other > top[k]:
                        fits = False
                        break
                if fits:
                    best, best_low, give = worst, low, start[high] + p
                    take = start[low] + q if q < count[low] else -1
    return best_low, give, take
