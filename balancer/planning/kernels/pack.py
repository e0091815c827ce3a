"""The loop of the balanced grouping: places samples, largest first.

Costs are scaled (`problem.loads.scale_costs`): integers in which the mean load of a group is about
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

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Vector

_NONE = cython.declare(Int, 2**62)


def place(
    order: Vector, costs: Matrix, budgets: Vector, groups: Int, group_of: Vector, loads: Matrix
) -> int:
    """Put items, in the order given, each into the group that stays lowest and most even.

    An item goes where the score after it is least within budgets, into a new group if it fits
    nowhere. group_of (n,) and loads (n + groups, resources), zero at first, are filled. Returns
    the number of groups.
    """
    # ranked[:empty] are the empty groups, which are all alike: only the last of them is tried.
    # ranked[empty:count] are the others by ascending score.
    ranked: Vector = np.arange(loads.shape[0])
    score: Vector = np.zeros(loads.shape[0], dtype=np.int64)
    count: Int = groups
    empty: Int = groups
    position: Int
    best: Int
    with cython.nogil:
        for number in range(order.shape[0]):
            item = order[number]
            position, best = find_group(item, costs, budgets, loads, ranked, score, empty, count)
            if position < 0:
                position = count
                ranked[position] = count
                count += 1
                best = compute_score(item, costs, loads, ranked[position])
            elif position == empty - 1:
                empty -= 1
            group = ranked[position]
            group_of[item] = group
            score[group] = best
            for r in range(costs.shape[1]):
                loads[group, r] += costs[item, r]
            keep_sorted(ranked, score, position, empty, count)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_group(
    item: Int, costs: Matrix, budgets: Vector, loads: Matrix, ranked: Vector, score: Vector,
    empty: Int, groups: Int,
) -> tuple[Int, Int]:  # fmt: skip
    """Return (place in ranked, score with the item) of the best group that it fits; place -1: none.

    Ties go to the first.
    """
    resources = costs.shape[1]
    weight = resources + 2
    total: Int = 0
    least: Int = costs[item, 0]
    for r in range(resources):
        total += costs[item, r]
        least = min(least, costs[item, r])
    least_rise = weight * least - total
    best: Int = _NONE
    chosen: Int = -1
    for position in range(max(0, empty - 1), groups):
        group = ranked[position]
        if score[group] + least_rise >= best:
            break
        top: Int = 0
        whole: Int = 0
        fits: Flag = True
        for r in range(resources):
            load = loads[group, r] + costs[item, r]
            if load > budgets[r]:
                fits = False
                break
            whole += load
            if load > top:
                top = load
        if fits and weight * top - whole < best:
            best, chosen = weight * top - whole, position
    return chosen, best


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def compute_score(item: Int, costs: Matrix, loads: Matrix, group: Int) -> Int:
    """Return the score of a group with one more item."""
    top: Int = 0
    whole: Int = 0
    for r in range(costs.shape[1]):
        after = loads[group, r] + costs[item, r]
        whole += after
        top = max(top, after)
    score: Int = (costs.shape[1] + 2) * top - whole
    return score


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def keep_sorted(
    ranked: Vector, score: Vector, position: Int, empty: Int, groups: Int
) -> cython.void:
    """Move the group at place `position` to where its new score belongs in ranked[empty:groups].

    All others are sorted by ascending score; it goes before those of equal score.
    """
    group = ranked[position]
    # Scores rise almost always, so the way up is a binary search and the way down is step by step.
    low, high = position + 1, groups
    while low < high:
        middle = (low + high) // 2
        if score[ranked[middle]] < score[group]:
            low = middle + 1
        else:
            high = middle
    for there in range(position, low - 1):
        ranked[there] = ranked[there + 1]
    at = low - 1
    while at > empty and score[ranked[at - 1]] > score[group]:
        ranked[at] = ranked[at - 1]
        at -= 1
    ranked[at] = group
