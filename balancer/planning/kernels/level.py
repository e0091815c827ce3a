"""The compiled loop that evens out teams: ranks that wait for each other, sample by sample.

A team is a set of cells (microbatches) whose sum counts at one waiting point: a single microbatch
where ranks wait after each, all microbatches of a rank where they wait once a step. Teams that wait
for each other form a contest, and what it costs is, in each column of `work`, its largest load: its
top. A step has one contest or several; their tops add up.

One column of one contest after the other, the team at the top exchanges samples with others of the
step. An exchange must bring it below the top, and may raise no top that is guarded. So each lowers
a top, or the number of teams that hold it, and the loop ends. Of the exchanges that are tried, the
one that leaves both teams farthest below their tops is made.
"""

import numpy as np

from .arrays import Int64, Slots
from .jit import compiled, inlined
from .swap import exchange, shift_by


@compiled
def level_steps(
    slots: Slots, costs: Int64, budgets: Int64, work: Int64, cells: Int64, turns: Int64,
    searches: int, candidates: int, tries: int, near: int,
) -> int:  # fmt: skip
    """Level every step; change slots and return the number of exchanges made.

    cells (steps, contests, teams, cells of a team): groups of slots. work (n, columns): what a
    sample adds to its team. costs (n, resources) and budgets (resources,) limit each cell. turns
    (m, 3): a column, and the first and the end of the columns that may get no higher top by it. A
    column of a contest gets `searches` searches per team, each among `candidates` teams. It is
    given up after `tries` in a row without an exchange, or when its top is above the mean by at
    most a part in 2**near.
    """
    changes = 0
    for step in cells:
        loads = team_loads(slots, work, step)
        tops = np.empty((step.shape[0], work.shape[1]), dtype=np.int64)
        for contest in range(step.shape[0]):
            set_tops(tops, loads, contest)
        for column, begin, end in turns:
            for contest in range(step.shape[0]):
                changes += level_contest(
                    slots, costs, budgets, work, step, loads, tops, contest, column, begin, end,
                    searches * step.shape[1], candidates, tries, near,
                )  # fmt: skip
    return changes


@compiled
def level_contest(
    slots: Slots, costs: Int64, budgets: Int64, work: Int64, cells: Int64, loads: Int64,
    tops: Int64, contest: int, column: int, begin: int, end: int, searches: int, candidates: int,
    tries: int, near: int,
) -> int:  # fmt: skip
    """Lower the top of one column of one contest; return the number of exchanges made."""
    failed, changes = 0, 0
    for search in range(searches):
        if failed == tries or is_level(loads, tops, contest, column, near):
            break
        high = int(loads[contest, :, column].argmax())
        other, low, give, take, giver, taker = find_partner(
            slots, costs, budgets, work, cells, loads, tops, contest, high, column, begin, end,
            search * candidates, candidates,
        )  # fmt: skip
        if other < 0:
            failed += 1
            continue
        failed = 0
        changes += 1
        given = slots.items[give]
        taken = slots.items[take] if take >= 0 else -1
        for k in range(work.shape[1]):
            by = shift_by(work, given, taken, k)
            loads[contest, high, k] -= by
            loads[other, low, k] += by
        exchange(slots, costs, giver, taker, give, take)
        set_tops(tops, loads, contest)
        set_tops(tops, loads, other)
    return changes


@compiled
def find_partner(
    slots: Slots, costs: Int64, budgets: Int64, work: Int64, cells: Int64, loads: Int64,
    tops: Int64, contest: int, high: int, column: int, begin: int, end: int, first: int,
    candidates: int,
) -> tuple[int, int, int, int, int, int]:  # fmt: skip
    """Return the best exchange of team `high` of `contest` that some teams of the step allow.

    The partner's contest and team, place given, place taken, cell that gives, cell that takes;
    contest -1 for none, place taken -1 where the sample only moves. Tried are `candidates` teams,
    from number `first` on, that are below their top.
    """
    teams = cells.shape[1]
    every = cells.shape[0] * teams
    best, tried = 1, 0
    found = (-1, -1, -1, -1, -1, -1)
    for x in range(every):
        number = (first + x) % every
        other, low = number // teams, number % teams
        room = tops[other, column] - loads[other, low, column]
        if room <= 0 or (other == contest and low == high):
            continue
        tried += 1
        if tried > candidates:
            break
        # In its own contest the other team must stay below the top, in another one may reach it.
        limit = min(best, 0 if other == contest else 1)
        worst, give, take, giver, taker = best_between(
            slots, costs, budgets, work, cells, loads, tops, contest, high, other, low, column,
            begin, end, limit,
        )  # fmt: skip
        if worst < limit:
            best, found = worst, (other, low, give, take, giver, taker)
    return found


@compiled
def best_between(
    slots: Slots, costs: Int64, budgets: Int64, work: Int64, cells: Int64, loads: Int64,
    tops: Int64, contest: int, high: int, other: int, low: int, column: int, begin: int, end: int,
    limit: int,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Return (how far below their tops both end, place given, place taken, both cells).

    The first is negative, or less than `limit`, or else there is no exchange.
    """
    items, start, count = slots.items, slots.start, slots.counts
    room = tops[other, column] - loads[other, low, column]
    best, give, take, giver, taker = limit, -1, -1, -1, -1
    for out in cells[contest, high]:
        for p in range(start[out], start[out] + count[out]):
            for into in cells[other, low]:
                behind = start[into] + count[into]
                # The place behind the last sample is a move, where there is room for it.
                moves = behind < start[into + 1] and count[out] > 1
                for q in range(start[into], behind + moves):
                    given, taken = items[p], items[q] if q < behind else -1
                    by = shift_by(work, given, taken, column)
                    worst = max(-by, by - room)
                    # the cheap test first: most exchanges fail it
                    if by <= 0 or worst >= best:
                        continue
                    if keeps_tops(
                        work, loads, tops, begin, end, contest, high, other, low, given, taken
                    ) and fits_budgets(slots.loads, costs, budgets, out, into, given, taken):
                        best, give, giver, taker = worst, p, out, into
                        take = q if taken >= 0 else -1
    return best, give, take, giver, taker


@compiled
def team_loads(slots: Slots, work: Int64, cells: Int64) -> Int64:
    """Return the sums of work (contests, teams, columns) of cells (contests, teams, cells)."""
    loads = np.zeros((cells.shape[0], cells.shape[1], work.shape[1]), dtype=np.int64)
    for contest in range(cells.shape[0]):
        for team in range(cells.shape[1]):
            for cell in cells[contest, team]:
                for place in range(slots.start[cell], slots.start[cell] + slots.counts[cell]):
                    for k in range(work.shape[1]):
                        loads[contest, team, k] += work[slots.items[place], k]
    return loads


@inlined
def set_tops(tops: Int64, loads: Int64, contest: int) -> None:
    """Set the tops (contests, columns) of one contest to its largest loads."""
    for k in range(loads.shape[2]):
        tops[contest, k] = loads[contest, :, k].max()


@inlined
def is_level(loads: Int64, tops: Int64, contest: int, column: int, near: int) -> bool:
    """Return True if a contest's top is above the mean by at most a part in 2**near."""
    whole = np.int64(0)
    for team in range(loads.shape[1]):
        whole += loads[contest, team, column]
    return bool(tops[contest, column] * loads.shape[1] - whole <= abs(whole) >> near)


@inlined
def keeps_tops(
    work: Int64, loads: Int64, tops: Int64, begin: int, end: int, ours: int, high: int, theirs: int,
    low: int, given: int, taken: int,
) -> bool:  # fmt: skip
    """Return True if both teams stay at or below the tops of their contests in guarded columns."""
    for k in range(begin, end):
        by = shift_by(work, given, taken, k)
        if (
            loads[ours, high, k] - by > tops[ours, k]
            or loads[theirs, low, k] + by > tops[theirs, k]
        ):
            return False
    return True


@inlined
def fits_budgets(
    loads: Int64, costs: Int64, budgets: Int64, out: int, into: int, given: int, taken: int
) -> bool:
    """Return True if both cells are within budgets after an exchange."""
    for r in range(costs.shape[1]):
        by = shift_by(costs, given, taken, r)
        if loads[into, r] + by > budgets[r] or loads[out, r] - by > budgets[r]:
            return False
    return True
