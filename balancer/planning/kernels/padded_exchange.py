"""The compiled loop that evens out what adds up (tiles) between padded microbatches.

A row's time is the most that one of its microbatches costs padded, plus the most that one of them
costs in what adds up. The microbatch with the most of the latter exchanges a sample with another
one, or gives one away, where that lowers the time of the rows: padding may rise by less than is
won. So every exchange lowers the step's time, and the loop ends.
"""

import numpy as np

from .arrays import Int64, Slots
from .jit import compiled, inlined


@compiled
def even_out(
    slots: Slots, padded: Int64, added: Int64, columns: Int64, is_padded: Int64, budgets: Int64,
    ranks: int, searches: int, candidates: int, tries: int,
) -> int:  # fmt: skip
    """Change slots, groups k * ranks ... of which are row k; return the number of exchanges.

    padded and added (n,): times as in SampleTimes. columns (n, resources), is_padded and budgets
    (resources,) limit every group. A row gets `searches` searches per rank, each among
    `candidates` groups, and is given up after `tries` in a row without an exchange.
    """
    groups = len(slots.counts)
    loads = np.zeros((groups, 2), dtype=np.int64)  # padded and added, of each group
    heads = np.zeros((groups, 2), dtype=np.int64)  # the largest and the second largest
    for group in range(groups):
        weigh(slots, padded, added, group, loads, heads)
    changes = 0
    for row in range(groups // ranks):
        failed = 0
        for search in range(searches * ranks):
            if failed == tries:
                break
            high = row * ranks + int(loads[row * ranks : (row + 1) * ranks, 1].argmax())
            other, give, take = best_partner(
                slots, padded, added, columns, is_padded, budgets, loads, heads, ranks, high,
                search * candidates, candidates,
            )  # fmt: skip
            if other < 0:
                failed += 1
                continue
            failed = 0
            changes += 1
            hand_over(slots, high, other, give, take)
            weigh(slots, padded, added, high, loads, heads)
            weigh(slots, padded, added, other, loads, heads)
    return changes


@compiled
def best_partner(
    slots: Slots, padded: Int64, added: Int64, columns: Int64, is_padded: Int64, budgets: Int64,
    loads: Int64, heads: Int64, ranks: int, high: int, first: int, candidates: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Return (group, place given, place taken) of the best exchange.

    Group -1: there is none. Place taken -1: the sample moves. Tried are `candidates` groups, in
    turn of the same row, where heads differ least, and of all.
    """
    groups, row = len(slots.counts), high // ranks
    best, found = np.int64(0), (-1, -1, -1)
    for x in range(min(candidates, groups - 1)):
        if x % 2 == 0 and ranks > 1:
            other = row * ranks + (high + 1 + (first + x) // 2 % (ranks - 1)) % ranks
        else:
            other = (high + 1 + (first + x) % (groups - 1)) % groups
        if other == high:
            continue
        behind = slots.start[other] + slots.counts[other]
        moves = behind < slots.start[other + 1] and slots.counts[high] > 1
        for p in range(slots.start[high], slots.start[high] + slots.counts[high]):
            given = slots.items[p]
            for q in range(slots.start[other], behind + moves):
                taken = slots.items[q] if q < behind else -1
                by = added[given] - (added[taken] if taken >= 0 else 0)
                if by <= 0:
                    continue
                change = change_of_time(
                    slots, padded, loads, heads, ranks, high, other, given, taken, by
                )
                if (
                    change < best
                    and fits(slots, columns, is_padded, budgets, high, given, taken)
                    and fits(slots, columns, is_padded, budgets, other, taken, given)
                ):
                    best, found = change, (other, p, q if taken >= 0 else -1)
    return found


@compiled
def change_of_time(
    slots: Slots, padded: Int64, loads: Int64, heads: Int64, ranks: int, high: int, other: int,
    given: int, taken: int, by: int,
) -> np.int64:  # fmt: skip
    """Return by how much an exchange changes the time of the rows of both groups."""
    moved = taken < 0
    left = heads[high, 1] if padded[given] == heads[high, 0] else heads[high, 0]
    kept = heads[other, 0]
    if not moved:
        left = max(left, padded[taken])
        kept = heads[other, 1] if padded[taken] == heads[other, 0] else heads[other, 0]
    kept = max(kept, padded[given])
    new_high = (slots.counts[high] - moved) * left
    new_other = (slots.counts[other] + moved) * kept
    before, after = np.int64(0), np.int64(0)
    same = high // ranks == other // ranks
    for row in (high // ranks, other // ranks):
        old, new = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
        for group in range(row * ranks, (row + 1) * ranks):
            one, two = loads[group, 0], loads[group, 1]
            old[0], old[1] = max(old[0], one), max(old[1], two)
            if group == high:
                one, two = new_high, two - by
            elif group == other:
                one, two = new_other, two + by
            new[0], new[1] = max(new[0], one), max(new[1], two)
        before += old[0] + old[1]
        after += new[0] + new[1]
        if same:
            break
    change: np.int64 = after - before
    return change


@compiled
def fits(
    slots: Slots, columns: Int64, is_padded: Int64, budgets: Int64, group: int, less: int, more: int
) -> bool:
    """Return whether a group without item `less` and with item `more` (-1: none) is in budget."""
    for r in range(columns.shape[1]):
        count, whole, largest = 0, np.int64(0), np.int64(0)
        for place in range(slots.start[group], slots.start[group] + slots.counts[group]):
            item = slots.items[place]
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


@compiled
def hand_over(slots: Slots, high: int, other: int, give: int, take: int) -> None:
    """Exchange the samples at two places; with take -1 the one given moves to the other's end."""
    given = slots.items[give]
    if take >= 0:
        slots.items[give] = slots.items[take]
        slots.items[take] = given
        return
    slots.counts[high] -= 1
    slots.items[give] = slots.items[slots.start[high] + slots.counts[high]]
    slots.items[slots.start[other] + slots.counts[other]] = given
    slots.counts[other] += 1


@inlined
def weigh(
    slots: Slots, padded: Int64, added: Int64, group: int, loads: Int64, heads: Int64
) -> None:
    """Set the loads and the two largest of a group."""
    one, two, whole = np.int64(0), np.int64(0), np.int64(0)
    for place in range(slots.start[group], slots.start[group] + slots.counts[group]):
        item = slots.items[place]
        whole += added[item]
        if padded[item] > one:
            one, two = padded[item], one
        elif padded[item] > two:
            two = padded[item]
    heads[group, 0], heads[group, 1] = one, two
    loads[group, 0], loads[group, 1] = slots.counts[group] * one, whole
