"""Levelling teams, against plain lists and all exchanges of the teams that are tried."""

from collections.abc import Iterator

import numpy as np
import pytest

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.level import level_steps
from tests.balancer.planning.kernels import plain

# A contest's teams, and their cells.
Contest = list[list[int]]
Place = tuple[int, int]


class Steps:
    """Levelling by the definition: loads are summed anew for each exchange that is looked at."""

    def __init__(
        self, groups: plain.Groups, room: list[int], costs: np.ndarray, budgets: list[int],
        work: np.ndarray,
    ) -> None:  # fmt: skip
        self.groups, self.room, self.costs, self.work = groups, room, costs, work
        self.budgets = budgets

    def load(self, team: list[int]) -> list[int]:
        return plain.sums(self.work, [item for cell in team for item in self.groups[cell]])

    def top(self, contest: Contest) -> list[int]:
        return [max(column) for column in zip(*map(self.load, contest), strict=True)]

    def exchanges(
        self, high: list[int], low: list[int]
    ) -> Iterator[tuple[int, int, plain.Exchange]]:
        """Cells that give and take, and the exchange; in the order that decides among equals."""
        for out in high:
            for give in range(len(self.groups[out])):
                for into in low:
                    takes: list[int | None] = [*range(len(self.groups[into]))]
                    if len(self.groups[into]) < self.room[into] and len(self.groups[out]) > 1:
                        takes.append(None)
                    for take in takes:
                        yield out, into, (give, take)

    def partner(
        self, step: list[Contest], contest: int, high: int, column: int, guarded: range,
        first: int, candidates: int,
    ) -> tuple[int, int, plain.Exchange] | None:  # fmt: skip
        """The exchange that leaves both teams farthest below their tops."""
        tops = [self.top(each) for each in step]
        teams = len(step[0])
        numbers = [(first + x) % (len(step) * teams) for x in range(len(step) * teams)]
        below = [
            (other, low) for other, low in (divmod(number, teams) for number in numbers)
            if self.load(step[other][low])[column] < tops[other][column]
            and (other, low) != (contest, high)
        ]  # fmt: skip
        best, found = 1, None
        for other, low in below[:candidates]:
            ours, theirs = step[contest][high], step[other][low]
            # in the same contest below the top, in another one no higher than it
            best_here = min(best, 0 if other == contest else 1)
            for out, into, exchange in self.exchanges(ours, theirs):
                kept = self.groups[out], self.groups[into]
                before = self.load(ours)[column]
                self.groups[out], self.groups[into] = plain.after(self.groups, out, into, exchange)
                high_load, low_load = self.load(ours), self.load(theirs)
                within = all(
                    load <= most for cell in (out, into)
                    for load, most in zip(
                        plain.sums(self.costs, self.groups[cell]), self.budgets, strict=True
                    )
                )  # fmt: skip
                self.groups[out], self.groups[into] = kept
                worst = max(high_load[column] - before, low_load[column] - tops[other][column])
                is_guarded = all(
                    high_load[k] <= tops[contest][k] and low_load[k] <= tops[other][k]
                    for k in guarded
                )
                lower = high_load[column] < before
                if lower and worst < best_here and is_guarded and within:
                    best = best_here = worst
                    found = out, into, exchange
        return found

    def level(
        self, step: list[Contest], turns: list[list[int]], searches: int, candidates: int,
        tries: int, near: int,
    ) -> int:  # fmt: skip
        changes = 0
        for column, begin, end in turns:
            for contest, teams in enumerate(step):
                failed = 0
                for search in range(searches * len(teams)):
                    loads = [self.load(team)[column] for team in teams]
                    is_level = max(loads) * len(loads) - sum(loads) <= abs(sum(loads)) >> near
                    if failed == tries or is_level:
                        break
                    found = self.partner(
                        step, contest, loads.index(max(loads)), column, range(begin, end),
                        search * candidates, candidates,
                    )  # fmt: skip
                    if found is None:
                        failed += 1
                        continue
                    failed = 0
                    changes += 1
                    out, into, exchange = found
                    self.groups[out], self.groups[into] = plain.after(
                        self.groups, out, into, exchange
                    )
        return changes


@pytest.mark.parametrize("kind", ["microbatches", "once a step", "one of two"])
@pytest.mark.parametrize("bound", [False, True])
def test_teams_are_levelled_by_the_best_of_the_exchanges_that_are_tried(
    kind: str, bound: bool
) -> None:
    total = 0
    for seed in range(4):
        draw = np.random.default_rng(seed)
        costs = draw.integers(0, 60, (36, 2))
        work = costs if seed % 2 else draw.integers(0, 60, (36, 3))
        cells = np.arange(12).reshape(2, 3, 2)  # steps, ranks, microbatches
        contests = cells[:, None] if kind == "once a step" else cells.transpose(0, 2, 1)[..., None]
        if kind == "one of two":
            contests = contests[:, :1]
        columns = work.shape[1]
        turns = [[1, 0, columns], [0, 0, 1], [columns - 1, 1, 2], [0, 1, 1]]
        group_of = np.append(np.arange(12), draw.integers(0, 12, 24))
        slots = make_slots(costs, group_of, 12, 1 + seed % 2)
        budgets = slots.loads.max(axis=0) - 9 if bound else np.full(2, 2**62)
        steps = Steps(
            plain.groups_of(slots), np.diff(slots.start).tolist(), costs, budgets.tolist(), work
        )
        limits = (4, 2 + seed % 3, 3, 4 + seed)
        expected = sum(steps.level(step, turns, *limits) for step in contests.tolist())
        changes = level_steps(
            slots, costs, budgets, work, np.ascontiguousarray(contests), np.array(turns), *limits
        )
        assert (changes, plain.groups_of(slots)) == (expected, steps.groups), seed
        total += changes
    assert total > 10
