"""The loop that evens out what adds up (tiles) between padded microbatches.

A row's time is the most that one of its microbatches costs padded, plus the most that one of them
costs in what adds up. The microbatch with the most of the latter exchanges a sample with another
one, or gives one away, where that lowers the time of the rows: padding may rise by less than is
won. So every exchange lowers the step's time, and the loop ends.
"""

import numpy as np

from . import cython

if not cython.compiled:
    from .arrays import Flag, Int, Matrix, Slots, Vector
    from .swap import exchange


def even_out(
    slots: Slots, padded: Vector, added: Vector, columns: Matrix, is_padded: Vector,
    budgets: Vector, ranks: Int, searches: Int, candidates: Int, tries: Int,
) -> int:  # fmt: skip
    """Change slots, groups k * ranks ... of which are row k; return the number of exchanges.

    padded and added (n,): times as in SampleTimes. columns (n, resources), is_padded and budgets
    (resources,) limit every group. A row gets `searches` searches per rank, each among
    `candidates` groups, and is given up after `tries` in a row without an exchange.
    """
    items: Vector = slots.items
    start: Vector = slots.start
    counts: Vector = slots.counts
    groups = counts.shape[0]
    loads: Matrix = np.zeros((groups, 2), dtype=np.int64)  # padded and added, of each group
    heads: Matrix = np.zeros((groups, 2), dtype=np.int64)  # the largest and the second largest
    none: Matrix = np.zeros((groups, 0), dtype=np.int64)  # of sums: both groups are weighed anew
    changes: Int = 0
    failed: Int
    partner: Int
    give: Int
    take: Int
    with cython.nogil:
        for group in range(groups):
            weigh(items, start, counts, padded, added, group, loads, heads)
        for row in range(groups // ranks):
            failed = 0
            for search in range(searches * ranks):
                if failed == tries:
                    break
                high: Int = row * ranks
                for group in range(row * ranks, (row + 1) * ranks):
                    if loads[group, 1] > loads[high, 1]:
                        high = group
                partner, give, take = best_partner(
                    items, start, counts, padded, added, columns, is_padded, budgets, loads, heads,
                    ranks, high, search * candidates, candidates,
                )  # fmt: skip
                if partner < 0:
                    failed += 1
                    continue
                failed = 0
                changes += 1
                exchange(items, start, counts, none, none, high, partner, give, take)
                weigh(items, start, counts, padded, added, high, loads, heads)
                weigh(items, start, counts, padded, added, partner, loads, heads)
    return changes


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def best_partner(
    items: Vector, start: Vector, counts: Vector, padded: Vector, added: Vector, columns: Matrix,
    is_padded: Vector, budgets: Vector, loads: Matrix, heads: Matrix, ranks: Int, high: Int,
    first: Int, candidates: Int,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """Return (group, place given, place taken) of the best exchange.

    Group -1: there is none. Place taken -1: the sample moves. Tried are `candidates` groups, in
    turn of the same row, where heads differ least, and of all.
    """
    groups, row = counts.shape[0], high // ranks
    best: Int = 0
    partner: Int = -1
    give: Int = -1
    take: Int = -1
    for x in range(min(candidates, groups - 1)):
        candidate: Int = (high + 1 + (first + x) % (groups - 1)) % groups
        if x % 2 == 0 and ranks > 1:
            candidate = row * ranks + (high + 1 + (first + x) // 2 % (ranks - 1)) % ranks
        if candidate == high:
            continue
        behind = start[candidate] + counts[candidate]
        moves: Flag = behind < start[candidate + 1] and counts[high] > 1
        for p in range(start[high], start[high] + counts[high]):
            sent = items[p]
            for q in range(start[candidate], behind + 1 if moves else behind):
                taken = items[q] if q < behind else -1
                by = added[sent] - (added[taken] if taken >= 0 else 0)
                if by <= 0:
                    continue
                change = change_of_time(
                    counts, padded, loads, heads, ranks, high, candidate, sent, taken, by
                )
                if (
                    change < best
                    and fits(items, start, counts, columns, is_padded, budgets, high, sent, taken)
                    and fits(
                        items, start, counts, columns, is_padded, budgets, candidate, taken, sent
                    )
                ):
                    best, partner, give = change, candidate, p
                    take = q if taken >= 0 else -1
    return partner, give, take


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def change_of_time(
    counts: Vector, padded: Vector, loads: Matrix, heads: Matrix, ranks: Int, high: Int,
    partner: Int, sent: Int, taken: Int, by: Int,
) -> Int:  # fmt: skip
    """Return by how much an exchange changes the time of the rows of both groups."""
    moved: Int = 1 if taken < 0 else 0
    left: Int = heads[high, 1] if padded[sent] == heads[high, 0] else heads[high, 0]
    right: Int = heads[partner, 0]
    if taken >= 0:
        left = max(left, padded[taken])
        right = heads[partner, 1] if padded[taken] == heads[partner, 0] else heads[partner, 0]
    right = max(right, padded[sent])
    new_high = (counts[high] - moved) * left
    new_partner = (counts[partner] + moved) * right
    change: Int = row_change(loads, ranks, high // ranks, high, partner, new_high, new_partner, by)
    if high // ranks != partner // ranks:
        change += row_change(
            loads, ranks, partner // ranks, high, partner, new_high, new_partner, by
        )
    return change


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def row_change(
    loads: Matrix, ranks: Int, row: Int, high: Int, partner: Int, new_high: Int, new_partner: Int,
    by: Int,
) -> Int:  # fmt: skip
    """Return by how much the time of a row changes with the new padded loads of two groups."""
    old_padded: Int = 0
    old_added: Int = 0
    new_padded: Int = 0
    new_added: Int = 0
    for group in range(row * ranks, (row + 1) * ranks):
        padded: Int = loads[group, 0]
        added: Int = loads[group, 1]
        old_padded, old_added = max(old_padded, padded), max(old_added, added)
        if group == high:
            padded, added = new_high, added - by
        elif group == partner:
            padded, added = new_partner, added + by
        new_padded, new_added = max(new_padded, padded), max(new_added, added)
    return new_padded + new_added - old_padded - old_added


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fits(
    items: Vector, start: Vector, counts: Vector, columns: Matrix, is_padded: Vector,
    budgets: Vector, group: Int, less: Int, more: Int,
) -> Flag:  # fmt: skip
    """Return whether a group without item `less` and with item `more` (-1: none) is in budget."""
    for r in range(columns.shape[1]):
        count: Int = 0
        whole: Int = 0
        largest: Int = 0
        for place in range(start[group], start[group] + counts[group]):
            item = items[place]
            if item != less:
                count += 1
                whole += columns[item, r]
                largest = max(largest, columns[item, r])
        if more >= 0:
            count += 1
            whole += columns[more, r]
            largest = max(largest, columns[more, r])
        if (count * largest if is_padded[r] else whole) > budgets[r]:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def weigh(
    items: Vector, start: Vector, counts: Vector, padded: Vector, added: Vector, group: Int,
    loads: Matrix, heads: Matrix,
) -> cython.void:  # fmt: skip
    """Set the loads and the two largest of a group."""
    largest: Int = 0
    second: Int = 0
    whole: Int = 0
    for place in range(start[group], start[group] + counts[group]):
        item = items[place]
        whole += added[item]
        if padded[item] > largest:
            largest, second = padded[item], largest
        elif padded[item] > second:
            second = padded[item]
    heads[group, 0], heads[group, 1] = largest, second
    loads[group, 0], loads[group, 1] = counts[group] * largest, whole
