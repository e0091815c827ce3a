"""The compiled loop of the balanced grouping: place samples, largest first.

It works on scaled costs (`scale.scaled`): integers in which the mean load of a group is about
2**20 for every resource, so that resources can be added.
"""

import numpy as np

from .arrays import Int64
from .jit import compiled


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
        keep_sorted(ranked, score, found, empty, groups)
    return groups


@compiled
def keep_sorted(ranked: Int64, score: Int64, found: int, empty: int, groups: int) -> None:
    """Move the group at place `found` to where its new score belongs in ranked[empty:groups].

    All others are sorted by ascending score; it goes before those of equal score.
    """
    group = ranked[found]
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
