"""Compiled loops of the balanced grouping: place by decreasing size, then swap between two ends.

Both work on scaled costs (`scale.scaled`): integers in which the mean load of a group is about
2**20 for every resource, so resources can be added and squares fit in 64 bits.
"""

import numpy as np

from .compiled import compiled
from .plan import Int64

_DIFFERENCE = 2**29


@compiled
def place(
    order: Int64, costs: Int64, budgets: Int64, groups: int, group_of: Int64, loads: Int64
) -> int:
    """Put items, in the order given, each into the group that stays lowest and most even.

    A group's score is (resources + 2) max - sum of its scaled loads; the item goes where the new
    score is least within budgets, into a new group if it fits nowhere. Groups are kept sorted by
    score, so the search ends where no later group can be better. group_of (n,) and loads
    (n + groups, resources), zero at first, are filled. Returns the number of groups.
    """
    resources = costs.shape[1]
    weight = resources + 2
    ranked = np.arange(loads.shape[0])
    score = np.zeros(loads.shape[0], dtype=np.int64)
    empty = groups
    for item in order:
        total, least = np.int64(0), costs[item, 0]
        for r in range(resources):
            total += costs[item, r]
            least = min(least, costs[item, r])
        slack = total - weight * least
        best, found = np.int64(2**62), -1
        for position in range(max(0, empty - 1), groups):
            group = ranked[position]
            if score[group] - slack >= best:
                break
            top, whole, fits = np.int64(0), np.int64(0), True
            for r in range(resources):
                load = loads[group, r] + costs[item, r]
                if load > budgets[r]:
                    fits = False
                    break
                whole += load
                if load > top:
                    top = load
            if fits and weight * top - whole < best:
                best, found = weight * top - whole, position
        if found < 0:
            found = groups
            ranked[found] = groups
            groups += 1
            top = np.int64(0)
            for r in range(resources):
                top = max(top, costs[item, r])
            best = weight * top - total
        elif found == empty - 1:
            empty -= 1
        group = ranked[found]
        group_of[item] = group
        score[group] = best
        for r in range(resources):
            loads[group, r] += costs[item, r]
        low, high = found + 1, groups
        while low < high:
            middle = (low + high) // 2
            if score[ranked[middle]] < best:
                low = middle + 1
            else:
                high = middle
        for position in range(found, low - 1):
            ranked[position] = ranked[position + 1]
        found = low - 1
        while found > empty and score[ranked[found - 1]] > best:
            ranked[found] = ranked[found - 1]
            found -= 1
        ranked[found] = group
    return groups


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
    """Pair the most loaded groups with the least, apply each pair's best swap or move; repeat.

    Each round sorts the active groups by one view of their loads (the resource that deviates
    most, the others, the difference) and pairs the ends. For loads a, b and a swap that shifts d,
    the squared deviations fall by 2 d (a - b - d) summed over resources: no mean is needed.
    slots[start[g] : start[g] + count[g]] are the items of group g, with free room up to
    start[g + 1]. At most `look` items of a group are tried in a pair. Returns the changes made.
    """
    resources = costs.shape[1]
    size = active.size
    half = size // 2
    key = np.empty(size, dtype=np.int64)
    gap = np.empty(resources, dtype=np.int64)
    state = np.uint64(seed)
    changes, quiet = 0, 0
    for turn in range(rounds):
        spread, widest = np.float64(-1.0), 0
        for r in range(resources):
            mean = np.int64(0)
            for x in range(size):
                mean += loads[active[x], r]
            mean //= size
            squares = np.float64(0.0)
            for x in range(size):
                squares += np.float64(loads[active[x], r] - mean) ** 2
            if squares > spread:
                spread, widest = squares, r
        for x in range(size):
            main = loads[active[x], widest]
            rest = np.int64(0)
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
        state += np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed ^ (mixed >> np.uint64(27))
        shift = np.int64(mixed % np.uint64(size // 8 + 1)) if turn >= 4 else 0
        if turn % 4 == 2:
            shift = np.int64(mixed % np.uint64(size))
        before = changes
        tail = size if turn % 4 != 2 else size // 16 + 1
        middle = 0.5 * (key[ends[size // 2]] + key[ends[(size - 1) // 2]])
        down = middle - key[ends[0]] > key[ends[size - 1]] - middle
        for x in range(half):
            if tail == size:
                high = active[ends[size - 1 - x]]
                low = active[ends[(x + shift) % half]]
            elif down:
                high = active[ends[size - 1 - (x + shift) % (size - tail)]]
                low = active[ends[x % tail]]
            else:
                high = active[ends[size - 1 - x % tail]]
                low = active[ends[(x + shift) % (size - tail)]]
            for r in range(resources):
                wide = loads[high, r] - loads[low, r]
                gap[r] = min(max(wide, -_DIFFERENCE), _DIFFERENCE)
            best, give, take = np.int64(0), -1, -1
            first_high = turn % max(1, count[high] - look + 1)
            first_low = turn % max(1, count[low] - look + 1)
            for p in range(-1, min(count[high], look)):
                if p < 0 and (not moves or count[low] < 2):
                    continue
                one = -1 if p < 0 else slots[start[high] + first_high + p]
                for q in range(-1, min(count[low], look)):
                    if q < 0 and (p < 0 or not moves or count[high] < 2):
                        continue
                    other = -1 if q < 0 else slots[start[low] + first_low + q]
                    gain, fits = np.int64(0), True
                    for r in range(resources):
                        by = np.int64(0)
                        if one >= 0:
                            by += costs[one, r]
                        if other >= 0:
                            by -= costs[other, r]
                        gain += by * (by - gap[r])
                        if loads[high, r] - by > budgets[r] or loads[low, r] + by > budgets[r]:
                            fits = False
                            break
                    if fits and gain < best:
                        best, give, take = gain, one, other
                        at_high, at_low = first_high + p, first_low + q
            if best == 0:
                continue
            if give < 0 and start[high] + count[high] == start[high + 1]:
                continue
            if take < 0 and start[low] + count[low] == start[low + 1]:
                continue
            changes += 1
            for r in range(resources):
                by = np.int64(0)
                if give >= 0:
                    by += costs[give, r]
                if take >= 0:
                    by -= costs[take, r]
                loads[high, r] -= by
                loads[low, r] += by
            if give >= 0 and take >= 0:
                slots[start[high] + at_high] = take
                slots[start[low] + at_low] = give
            elif give >= 0:
                slots[start[low] + count[low]] = give
                count[low] += 1
                count[high] -= 1
                slots[start[high] + at_high] = slots[start[high] + count[high]]
            else:
                slots[start[high] + count[high]] = take
                count[high] += 1
                count[low] -= 1
                slots[start[low] + at_low] = slots[start[low] + count[low]]
        quiet = quiet + 1 if changes == before else 0
        if quiet == 8:
            break
    return changes
