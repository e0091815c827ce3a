"""The compiled loop of the balanced grouping: places samples, largest first.

Costs are scaled (`problem.scale.scale_costs`): integers in which the mean load of a group is about
2**20 for every resource, so that resources can be added. A group's score is

    (resources + 2) x its largest load - the sum of its loads

It rises with the group's fullness and with its unevenness: among groups of one sum the most even
one has the least score. Each sample goes to the group whose score after it is least, so groups
fill up together and stay even.

Groups are kept sorted by score, which bounds the search: a sample adds to a group's score at least
(resources + 2) x its smallest cost - its total. So once the score of a group plus that is no
better than the best found, no later group can be better.
"""

import numpy as np

from .arrays import Int64
from .jit import compiled, inlined

_NONE = 2**62


@compiled
def place(
    order: Int64, costs: Int64, budgets: Int64, groups: int, group_of: Int64, loads: Int64
) -> int:
    """Put items, in the order given, each into the group that stays lowest and most even.

    An item goes where the score after it is least within budgets, into a new group if it fits
    nowhere. group_of (n,) and loads (n + groups, resources), zero at first, are filled. Returns
    the number of groups.
    """
    resources = costs.shape[1]
    # ranked[:empty] are the empty groups, which are all alike: only the last of them is tried.
    # ranked[empty:groups] are the others by ascending score.
    ranked = np.arange(loads.shape[0])
    score = np.zeros(loads.shape[0], dtype=np.int64)
    empty = groups
    for item in order:
        found, best = find_group(item, costs, budgets, loads, ranked, score, empty, groups)
        if found < 0:
            found = groups
            ranked[found] = groups
            groups += 1
            best = score_with(item, costs, loads[ranked[found]])
        elif found == empty - 1:
            empty -= 1
        group = ranked[found]
        group_of[item] = group
        score[group] = best
        for r in range(resources):
            loads[group, r] += costs[item, r]
        keep_sorted(ranked, score, found, empty, groups)
    return groups


@inlined
def find_group(
    item: int,
    costs: Int64,
    budgets: Int64,
    loads: Int64,
    ranked: Int64,
    score: Int64,
    empty: int,
    groups: int,
) -> tuple[int, np.int64]:
    """Return (place in ranked, score with the item) of the best group that it fits; place -1: none.

    Ties go to the first.
    """
    resources = costs.shape[1]
    weight = resources + 2
    total, least = np.int64(0), costs[item, 0]
    for r in range(resources):
        total += costs[item, r]
        least = min(least, costs[item, r])
    least_rise = weight * least - total
    best, found = np.int64(_NONE), -1
    for position in range(max(0, empty - 1), groups):
        group = ranked[position]
        if score[group] + least_rise >= best:
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
    return found, best


@inlined
def score_with(item: int, costs: Int64, load: Int64) -> np.int64:
    """Return the score of a group of loads (resources,) with one more item."""
    resources = costs.shape[1]
    top, whole = np.int64(0), np.int64(0)
    for r in range(resources):
        after = load[r] + costs[item, r]
        whole += after
        top = max(top, after)
    score: np.int64 = (resources + 2) * top - whole
    return score


@compiled
def keep_sorted(ranked: Int64, score: Int64, found: int, empty: int, groups: int) -> None:
    """Move the group at place `found` to where its new score belongs in ranked[empty:groups].

    All others are sorted by ascending score; it goes before those of equal score.
    """
    group = ranked[found]
    # Scores rise almost always, so the way up is a binary search and the way down is step by step.
    low, high = found + 1, groups
    while low < high:
        middle = (low + high) // 2
        if score[ranked[middle]] < score[group]:
            low = middle + 1
        else:
            high = middle
    for there in range(found, low - 1):
        ranked[there] = ranked[there + 1]
    found = low - 1
    while found > empty and score[ranked[found - 1]] > score[group]:
        ranked[found] = ranked[found - 1]
        found -= 1
    ranked[found] = group
