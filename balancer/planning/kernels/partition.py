"""The loops of the multi-resource partition: placement, and descent on the largest loads.

Placement is Graham's longest processing time with vectors for sizes. The descent looks at the
figure that counts, the largest load of each resource: as long as the part that holds it can
exchange an item with another part such that it falls, and no other resource's largest load rises,
that exchange is made. Each step lowers one maximum and raises none, so the descent ends.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Int64, Matrix, Slots, Vector
    from .swap import exchange

_MOST_SCORE = cython.declare(Int, 2**62)


def place_vectors(order: Vector, costs: Matrix, parts: Int, room: Vector, part_of: Vector) -> Int64:
    """Longest processing time for vectors: each item to the part with the least score after it.

    Score: (resources + 2) max - sum of the part's loads. room (parts,): items a part may still
    take. Fills part_of and returns loads (parts, resources).
    """
    resources = costs.shape[1]
    weight = resources + 2
    result = np.zeros((parts, resources), dtype=np.int64)
    loads: Matrix = result
    with cython.nogil:
        for number in range(order.shape[0]):
            item = order[number]
            best: Int = _MOST_SCORE
            found: Int = 0
            for part in range(parts):
                if room[part] == 0:
                    continue
                top: Int = 0
                whole: Int = 0
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
    return result


def lower_maxima(slots: Slots, costs: Matrix, moves: Flag, searches: Int) -> int:
    """Lower the largest load of each resource by swaps and moves until none helps.

    Resources take turns: the part with the largest load of one makes the best exchange that
    lowers it (`best_lowering`). moves: items may also go one way. At most `searches` searches.
    Changes slots; returns the number of exchanges made.
    """
    items: Vector = slots.items
    start: Vector = slots.start
    counts: Vector = slots.counts
    loads: Matrix = slots.loads
    parts, resources = loads.shape[0], loads.shape[1]
    top: Vector = np.empty(resources, dtype=np.int64)
    changes: Int = 0
    stuck: Int = 0
    low: Int
    give: Int
    take: Int
    with cython.nogil:
        for turn in range(searches):
            if stuck == resources:
                break
            r = turn % resources
            for k in range(resources):
                top[k] = loads[0, k]
                for part in range(parts):
                    top[k] = max(top[k], loads[part, k])
            high: Int = 0
            while loads[high, r] != top[r]:
                high += 1
            low, give, take = best_lowering(items, start, counts, loads, costs, top, high, r, moves)
            # an item that only moves needs a free place behind the members of low
            if low < 0 or (take < 0 and start[low] + counts[low] == start[low + 1]):
                stuck += 1
                continue
            stuck = 0
            changes += 1
            exchange(items, start, counts, loads, costs, high, low, give, take)
    return changes


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def best_lowering(
    items: Vector, start: Vector, counts: Vector, loads: Matrix, costs: Matrix, top: Vector,
    high: Int, r: Int, moves: Flag,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Return (part, place given, place taken) of the best exchange with high; part -1 for none.

    Both parts must end below top[r], and no other resource k above top[k]; of these exchanges
    the one whose worse part holds least of r is best. Place taken -1: the item only moves.
    """
    best: Int = top[r]
    best_low: Int = -1
    give: Int = -1
    take: Int = -1
    for low in range(loads.shape[0]):
        if low == high or loads[low, r] >= top[r]:
            continue
        # The index after low's last item is a move, which high's only item may not make.
        lasts = counts[low] + 1 if moves and counts[high] > 1 else counts[low]
        for p in range(counts[high]):
            given = items[start[high] + p]
            for q in range(lasts):
                taken = items[start[low] + q] if q < counts[low] else -1
                by = costs[given, r] - (costs[taken, r] if taken >= 0 else 0)
                worst = max(loads[high, r] - by, loads[low, r] + by)
                # the cheap test first: most exchanges fail it
                if by <= 0 or worst >= best:
                    continue
                if keeps_below(loads, costs, top, high, low, given, taken):
                    best, best_low, give = worst, low, start[high] + p
                    take = start[low] + q if taken >= 0 else -1
    return best_low, give, take


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def keeps_below(
    loads: Matrix, costs: Matrix, top: Vector, high: Int, low: Int, given: Int, taken: Int
) -> Flag:
    """Return True if an exchange leaves no load of high or low above top (resources,)."""
    for k in range(costs.shape[1]):
        by = costs[given, k] - (costs[taken, k] if taken >= 0 else 0)
        if loads[high, k] - by > top[k] or loads[low, k] + by > top[k]:
            return False
    return True
