"""The loop that evens out teams: ranks that wait for each other, sample by sample.

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

from . import cython

if not cython.compiled:
    from .arrays import Cube, Flag, Grid, Int, Matrix, Slots, Vector
    from .swap import exchange


def level_steps(
    slots: Slots, costs: Matrix, budgets: Vector, work: Matrix, cells: Grid, turns: Matrix,
    searches: Int, candidates: Int, tries: Int, near: Int,
) -> int:  # fmt: skip
    """Level every step; change slots and return the number of exchanges made.

    cells (steps, contests, teams, cells of a team): groups of slots. work (n, columns): what a
    sample adds to its team. costs (n, resources) and budgets (resources,) limit each cell. turns
    (m, 3): a column, and the first and the end of the columns that may get no higher top by it. A
    column of a contest gets `searches` searches per team, each among `candidates` teams. It is
    given up after `tries` in a row without an exchange, or when its top is above the mean by at
    most a part in 2**near.
    """
    items: Vector = slots.items
    start: Vector = slots.start
    counts: Vector = slots.counts
    held: Matrix = slots.loads
    contests, teams = cells.shape[1], cells.shape[2]
    loads: Cube = np.empty((contests, teams, work.shape[1]), dtype=np.int64)
    tops: Matrix = np.empty((contests, work.shape[1]), dtype=np.int64)
    changes: Int = 0
    with cython.nogil:
        for step in range(cells.shape[0]):
            sum_teams(items, start, counts, work, cells, step, loads)
            for contest in range(contests):
                set_tops(tops, loads, contest)
            for turn in range(turns.shape[0]):
                for contest in range(contests):
                    changes += level_contest(
                        items, start, counts, held, costs, budgets, work, cells, step, loads, tops,
                        contest, turns[turn, 0], turns[turn, 1], turns[turn, 2], searches * teams,
                        candidates, tries, near,
                    )  # fmt: skip
    return changes


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def level_contest(
    items: Vector, start: Vector, counts: Vector, held: Matrix, costs: Matrix, budgets: Vector,
    work: Matrix, cells: Grid, step: Int, loads: Cube, tops: Matrix, contest: Int, column: Int,
    begin: Int, end: Int, searches: Int, candidates: Int, tries: Int, near: Int,
) -> Int:  # fmt: skip
    """Lower the top of one column of one contest; return the number of exchanges made."""
    failed: Int = 0
    changes: Int = 0
    for search in range(searches):
        if failed == tries or is_level(loads, tops, contest, column, near):
            break
        high: Int = 0
        for team in range(1, loads.shape[1]):
            if loads[contest, team, column] > loads[contest, high, column]:
                high = team
        theirs, low, give, take, giver, taker = find_partner(
            items, start, counts, held, costs, budgets, work, cells, step, loads, tops, contest,
            high, column, begin, end, search * candidates, candidates,
        )  # fmt: skip
        if theirs < 0:
            failed += 1
            continue
        failed = 0
        changes += 1
        sent = items[give]
        taken = items[take] if take >= 0 else -1
        for k in range(work.shape[1]):
            by = work[sent, k] - (work[taken, k] if taken >= 0 else 0)
            loads[contest, high, k] -= by
            loads[theirs, low, k] += by
        exchange(items, start, counts, held, costs, giver, taker, give, take)
        set_tops(tops, loads, contest)
        set_tops(tops, loads, theirs)
    return changes


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_partner(
    items: Vector, start: Vector, counts: Vector, held: Matrix, costs: Matrix, budgets: Vector,
    work: Matrix, cells: Grid, step: Int, loads: Cube, tops: Matrix, contest: Int, high: Int,
    column: Int, begin: Int, end: Int, first: Int, candidates: Int,
) -> tuple[Int, Int, Int, Int, Int, Int]:  # fmt: skip
    """Return the best exchange of team `high` of `contest` that some teams of the step allow.

    The partner's contest and team, place given, place taken, cell that gives, cell that takes;
    contest -1 for none, place taken -1 where the sample only moves. Tried are `candidates` teams,
    from number `first` on, that are below their top.
    """
    teams = cells.shape[2]
    number_of_teams = cells.shape[1] * teams
    best: Int = 1
    tried: Int = 0
    partner: Int = -1
    team: Int = -1
    place: Int = -1
    back: Int = -1
    out: Int = -1
    into: Int = -1
    for x in range(number_of_teams):
        number = (first + x) % number_of_teams
        theirs, low = number // teams, number % teams
        room = tops[theirs, column] - loads[theirs, low, column]
        if room <= 0 or (theirs == contest and low == high):
            continue
        tried += 1
        if tried > candidates:
            break
        # In its own contest the other team must stay below the top, in another one may reach it.
        limit: Int = min(best, 0 if theirs == contest else 1)
        worst, give, take, giver, taker = best_between(
            items, start, counts, held, costs, budgets, work, cells, step, loads, tops, contest,
            high, theirs, low, column, begin, end, limit,
        )  # fmt: skip
        if worst < limit:
            best, partner, team = worst, theirs, low
            place, back, out, into = give, take, giver, taker
    return partner, team, place, back, out, into


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def best_between(
    items: Vector, start: Vector, counts: Vector, held: Matrix, costs: Matrix, budgets: Vector,
    work: Matrix, cells: Grid, step: Int, loads: Cube, tops: Matrix, contest: Int, high: Int,
    theirs: Int, low: Int, column: Int, begin: Int, end: Int, limit: Int,
) -> tuple[Int, Int, Int, Int, Int]:  # fmt: skip
    """Return (how far below their tops both end, place given, place taken, both cells).

    The first is negative, or less than `limit`, or else there is no exchange.
    """
    room = tops[theirs, column] - loads[theirs, low, column]
    best: Int = limit
    give: Int = -1
    take: Int = -1
    giver: Int = -1
    taker: Int = -1
    for from_cell in range(cells.shape[3]):
        out = cells[step, contest, high, from_cell]
        for p in range(start[out], start[out] + counts[out]):
            sent = items[p]
            for to_cell in range(cells.shape[3]):
                into = cells[step, theirs, low, to_cell]
                behind = start[into] + counts[into]
                # The place behind the last sample is a move, where there is room for it.
                moves: Flag = behind < start[into + 1] and counts[out] > 1
                for q in range(start[into], behind + 1 if moves else behind):
                    taken = items[q] if q < behind else -1
                    by = work[sent, column] - (work[taken, column] if taken >= 0 else 0)
                    worst = max(-by, by - room)
                    # the cheap test first: most exchanges fail it
                    if by <= 0 or worst >= best:
                        continue
                    if keeps_tops(
                        work, loads, tops, begin, end, contest, high, theirs, low, sent, taken
                    ) and fits_budgets(held, costs, budgets, out, into, sent, taken):
                        best, give, giver, taker = worst, p, out, into
                        take = q if taken >= 0 else -1
    return best, give, take, giver, taker


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def sum_teams(
    items: Vector, start: Vector, counts: Vector, work: Matrix, cells: Grid, step: Int, loads: Cube
) -> cython.void:
    """Set loads (contests, teams, columns) to the sums of work of one step's cells."""
    for contest in range(cells.shape[1]):
        for team in range(cells.shape[2]):
            for k in range(work.shape[1]):
                whole: Int = 0
                for number in range(cells.shape[3]):
                    cell = cells[step, contest, team, number]
                    for place in range(start[cell], start[cell] + counts[cell]):
                        whole += work[items[place], k]
                loads[contest, team, k] = whole


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def set_tops(tops: Matrix, loads: Cube, contest: Int) -> cython.void:
    """Set the tops (contests, columns) of one contest to its largest loads."""
    for k in range(loads.shape[2]):
        top: Int = loads[contest, 0, k]
        for team in range(1, loads.shape[1]):
            top = max(top, loads[contest, team, k])
        tops[contest, k] = top


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_level(loads: Cube, tops: Matrix, contest: Int, column: Int, near: Int) -> Flag:
    """Return True if a contest's top is above the mean by at most a part in 2**near."""
    whole: Int = 0
    for team in range(loads.shape[1]):
        whole += loads[contest, team, column]
    above: Int = tops[contest, column] * loads.shape[1] - whole
    return above <= abs(whole) >> near


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def keeps_tops(
    work: Matrix, loads: Cube, tops: Matrix, begin: Int, end: Int, ours: Int, high: Int,
    theirs: Int, low: Int, sent: Int, taken: Int,
) -> Flag:  # fmt: skip
    """Return True if both teams stay at or below the tops of their contests in guarded columns."""
    for k in range(begin, end):
        by = work[sent, k] - (work[taken, k] if taken >= 0 else 0)
        if (
            loads[ours, high, k] - by > tops[ours, k]
            or loads[theirs, low, k] + by > tops[theirs, k]
        ):
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fits_budgets(
    held: Matrix, costs: Matrix, budgets: Vector, out: Int, into: Int, sent: Int, taken: Int
) -> Flag:
    """Return True if both cells are within budgets after an exchange."""
    for r in range(costs.shape[1]):
        by = costs[sent, r] - (costs[taken, r] if taken >= 0 else 0)
        if held[into, r] + by > budgets[r] or held[out, r] - by > budgets[r]:
            return False
    return True
