"""Compiled loops of the multi-resource partition: placement, and descent on the largest loads.

Placement is Graham's longest processing time with vectors for sizes. The descent looks at the
figure that counts, the largest load of each resource: as long as the part that holds it can
exchange an item with another part such that it falls, and no other resource's largest load rises,
that exchange is made. Each step lowers one maximum and raises none, so the descent ends.
"""

import numpy as np

from .arrays import Int64, Slots
from .jit import compiled, inlined
from .swap import exchange, shift_by


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
def lower_maxima(slots: Slots, costs: Int64, moves: bool, searches: int) -> int:
    """Lower the largest load of each resource by swaps and moves until none helps.

    Resources take turns: the part with the largest load of one makes the best exchange that
    lowers it (`best_lowering`). moves: items may also go one way. At most `searches` searches.
    Changes slots; returns the number of exchanges made.
    """
    parts, resources = slots.loads.shape
    top = np.empty(resources, dtype=np.int64)
    changes, stuck, turn = 0, 0, 0
    while stuck < resources and turn < searches:
        r = turn % resources
        turn += 1
        for k in range(resources):
            top[k] = slots.loads[0, k]
            for part in range(parts):
                top[k] = max(top[k], slots.loads[part, k])
        high = 0
        while slots.loads[high, r] != top[r]:
            high += 1
        low, give, take = best_lowering(slots, costs, top, high, r, moves)
        # an item that only moves needs a free place behind the members of low
        if low < 0 or (take < 0 and slots.start[low] + slots.counts[low] == slots.start[low + 1]):
            stuck += 1
            continue
        stuck = 0
        changes += 1
        exchange(slots, costs, high, low, give, take)
    return changes


@compiled
def best_lowering(
    slots: Slots, costs: Int64, top: Int64, high: int, r: int, moves: bool
) -> tuple[int, int, int]:
    """Return (part, place given, place taken) of the best exchange with high; part -1 for none.

    Both parts must end below top[r], and no other resource k above top[k]; of these exchanges
    the one whose worse part holds least of r is best. Place taken -1: the item only moves.
    """
    items, loads, start, count = slots.items, slots.loads, slots.start, slots.counts
    best, best_low, give, take = top[r], -1, -1, -1
    for low in range(loads.shape[0]):
        if low == high or loads[low, r] >= top[r]:
            continue
        # The index after low's last item is a move, which high's only item may not make.
        lasts = count[low] + 1 if moves and count[high] > 1 else count[low]
        for p in range(count[high]):
            given = items[start[high] + p]
            for q in range(lasts):
                taken = items[start[low] + q] if q < count[low] else -1
                by = costs[given, r]
                if taken >= 0:
                    by -= costs[taken, r]
                worst = max(loads[high, r] - by, loads[low, r] + by)
                # the cheap test first: most exchanges fail it
                if by <= 0 or worst >= best:
                    continue
                if keeps_below(loads, costs, top, high, low, given, taken):
                    best, best_low, give = worst, low, start[high] + p
                    take = start[low] + q if taken >= 0 else -1
    return best_low, give, take


@inlined
def keeps_below(
    loads: Int64, costs: Int64, top: Int64, high: int, low: int, given: int, taken: int
) -> bool:
    """Return True if an exchange leaves no load of high or low above top (resources,)."""
    for k in range(costs.shape[1]):
        by = shift_by(costs, given, taken, k)
        if loads[high, k] - by > top[k] or loads[low, k] + by > top[k]:
            return False
    return True
