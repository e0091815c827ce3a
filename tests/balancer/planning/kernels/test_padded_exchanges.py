"""Evening out what adds up between padded microbatches, against the time of all rows."""

import numpy as np
import pytest

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.padded_exchange import even_out
from tests.balancer.planning.kernels import plain


class Rows:
    """Rows of microbatches as plain lists, and the time of a step by its definition."""

    def __init__(
        self, groups: plain.Groups, room: list[int], padded: np.ndarray, added: np.ndarray,
        columns: np.ndarray, is_padded: list[int], budgets: list[int], ranks: int,
    ) -> None:  # fmt: skip
        self.groups, self.room, self.ranks = groups, room, ranks
        self.padded, self.added = padded.tolist(), added.tolist()
        self.columns, self.is_padded, self.budgets = columns, is_padded, budgets

    def sum(self, group: list[int]) -> int:
        return sum(self.added[item] for item in group)

    def time(self, groups: plain.Groups) -> int:
        """The largest padded microbatch of each row and its largest sum, over rows."""
        rows = [groups[at : at + self.ranks] for at in range(0, len(groups), self.ranks)]
        return sum(
            max(len(g) * max((self.padded[item] for item in g), default=0) for g in row)
            + max(map(self.sum, row))
            for row in rows
        )

    def within(self, group: list[int]) -> bool:
        for r, most in enumerate(self.budgets):
            column = self.columns[group, r].tolist()
            if (len(column) * max(column) if self.is_padded[r] else sum(column)) > most:
                return False
        return True

    def partners(self, high: int, first: int, candidates: int) -> list[int]:
        """The groups that are tried: in turn of the same row, and of all."""
        groups, ranks = len(self.groups), self.ranks
        row = high // ranks * ranks
        found = []
        for x in range(min(candidates, groups - 1)):
            if x % 2 == 0 and ranks > 1:
                found.append(row + (high + 1 + (first + x) // 2 % (ranks - 1)) % ranks)
            else:
                found.append((high + 1 + (first + x) % (groups - 1)) % groups)
        return [other for other in found if other != high]

    def best(self, high: int, others: list[int]) -> plain.Groups | None:
        """The groups after the exchange that lowers the time most; None where none lowers it."""
        least, found = self.time(self.groups), None
        for other in others:
            ours, theirs = self.groups[high], self.groups[other]
            takes: list[int | None] = [*range(len(theirs))]
            if len(theirs) < self.room[other] and len(ours) > 1:
                takes.append(None)
            for give in range(len(ours)):
                for take in takes:
                    groups = self.groups.copy()
                    groups[high], groups[other] = plain.after(groups, high, other, (give, take))
                    lower = self.sum(groups[high]) < self.sum(ours)
                    within = self.within(groups[high]) and self.within(groups[other])
                    if lower and within and self.time(groups) < least:
                        least, found = self.time(groups), groups
        return found

    def even_out(self, searches: int, candidates: int, tries: int) -> int:
        changes = 0
        for row in range(0, len(self.groups), self.ranks):
            failed = 0
            for search in range(searches * self.ranks):
                if failed == tries:
                    break
                loads = [self.sum(group) for group in self.groups[row : row + self.ranks]]
                high = row + loads.index(max(loads))
                found = self.best(high, self.partners(high, search * candidates, candidates))
                failed = failed + 1 if found is None else 0
                changes += found is not None
                self.groups = found or self.groups
        return changes


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_exchange_is_the_one_that_lowers_the_time_most(ranks: int) -> None:
    total = 0
    for seed in range(4):
        draw = np.random.default_rng(seed)
        count = 2 * ranks
        padded, added = draw.integers(1, 9, 3 * count), draw.integers(0, 40, 3 * count)
        columns = np.stack([padded, added], axis=1)
        group_of = np.append(np.arange(count), draw.integers(0, count, 2 * count))
        slots = make_slots(columns, group_of, count, 1 + seed % 2)
        is_padded = [1, 0]
        budgets = [40 + 4 * seed, 90] if seed % 2 else [2**62, 2**62]
        rows = Rows(
            plain.groups_of(slots), np.diff(slots.start).tolist(), padded, added, columns,
            is_padded, budgets, ranks,
        )  # fmt: skip
        limits = (4, 2 + seed % 4, 3)
        expected = rows.even_out(*limits)
        changes = even_out(
            slots, padded, added, columns, np.array(is_padded), np.array(budgets), ranks, *limits
        )
        assert (changes, plain.groups_of(slots)) == (expected, rows.groups), seed
        total += changes
    assert total > 2
