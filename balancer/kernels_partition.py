"""Compiled loops of partitioning: the largest-difference method, and descent on the maxima."""

import numpy as np

from .compiled import compiled
from .plan import Int64


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
    """Lower the largest load of each resource by swaps and moves until none helps; return changes.

    The part with the largest load of a resource exchanges an item with any other part, such that
    both end below that largest load and no other resource rises above its own largest. Among
    those the swap that leaves the pair's worst load lowest is taken. slots, start and count as in
    kernels_swap.two_ended. At most `tries` searches.
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
        best, best_p, best_q, best_low = top[r], -1, -1, -1
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
                    if by <= 0:
                        continue
                    worst = max(loads[high, r] - by, loads[low, r] + by)
                    if worst >= best:
                        continue
                    fits = True
                    for k in range(resources):
                        if k == r:
                            continue
                        other = costs[one, k]
                        if q < count[low]:
                            other -= costs[slots[start[low] + q], k]
                        if loads[high, k] - other > top[k] or loads[low, k] + other > top[k]:
                            fits = False
                            break
                    if fits:
                        best, best_p, best_q, best_low = worst, p, q, low
        full = best_low >= 0 and best_q == count[best_low]
        if full and start[best_low] + count[best_low] == start[best_low + 1]:
            best_low = -1
        if best_low < 0:
            stuck += 1
            continue
        stuck = 0
        changes += 1
        one = slots[start[high] + best_p]
        if full:
            count[high] -= 1
            slots[start[high] + best_p] = slots[start[high] + count[high]]
            slots[start[best_low] + count[best_low]] = one
            count[best_low] += 1
            for k in range(resources):
                loads[high, k] -= costs[one, k]
                loads[best_low, k] += costs[one, k]
        else:
            other_item = slots[start[best_low] + best_q]
            slots[start[high] + best_p] = other_item
            slots[start[best_low] + best_q] = one
            for k in range(resources):
                by = costs[one, k] - costs[other_item, k]
                loads[high, k] -= by
                loads[best_low, k] += by
    return changes
