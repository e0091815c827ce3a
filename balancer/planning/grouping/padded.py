"""Grouping for padded work: like sizes in one microbatch, like microbatches in one row.

A row is the microbatches that run side by side, one on each rank, and the step takes the sum of the
rows' largest. Sorted by size, the best microbatches of a row are neighbours (kernels/padded.py), so
what is left to choose is the row of each sample. With equal counts the sorted order cut into
rows is the best there is. With free counts all rows begin with one top, and then two at a time
exchange samples so that the sum of their tops falls.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import (
    best_tops,
    cut,
    cut_in_two,
    even_out,
    fill_empty,
    least_top,
    padded_tops,
    stops,
)
from ..problem.config import PlanConfig
from ..problem.loads import budget_array, group_loads
from ..problem.work import padded_loads, sample_times
from .groups import NOTHING, GroupingResult, make_slots, read_slots

_SWEEPS = 3  # over the pairs of rows
_NEAR = 3  # rows this far apart are improved together where there are many
_FEW_ROWS = 6  # of so many all pairs are improved
_TRIED_TOPS, _TRIED_TOPS_OF_MANY, _MANY_RANKS = 32, 8, 16  # of a pair of rows; from many ranks on
_SPARE_SLOTS, _SEARCHES_PER_RANK, _PARTNERS, _TRIES = 4, 4, 8, 8  # as in even_out


def group_padded(config: PlanConfig, costs: Int64, parts: int) -> GroupingResult:
    """Group samples (n, resources) into `parts` groups, or more where budgets need them.

    Groups ranks*k .. ranks*k + ranks - 1 are a row. For free counts and one padded resource a row
    by itself is exact, and so are two together but for the points tried; of more than two rows, and
    beside resources that add up, no bound is proven. Never above the samples in the order given,
    cut into `parts` groups. Follows OrchMLLM (2025) in the rule for one row; the rest is research
    of this project. A sample over budget is alone in its group, and no group is empty while there
    are samples enough.
    """
    times = sample_times(config, costs)
    order = np.argsort(-times.padded, kind="stable")
    padded, added = times.padded[order], times.added[order]
    samples = _SortedSamples(config, costs[order], padded, added, bool(added.any()), parts)
    candidates = [samples.even_out_added(samples.cut_equally(np.arange(len(costs))))]
    if not config.equal_counts:
        free = samples.group_freely()
        if free is None:
            return GroupingResult(NOTHING, samples.groups_needed())
        fill_empty(free, parts, config.ranks)
        candidates.append(samples.even_out_added(free))
    if samples.adds_up or config.limited:
        # The samples in the order given, as a loop that does not plan would cut them; beside
        # nothing else, sorted ones are never worse.
        candidates.append(samples.cut_equally(order))
    within_budgets = [candidate for candidate in candidates if samples.is_within_budgets(candidate)]
    if not within_budgets:
        return GroupingResult(NOTHING, parts + 1)
    group_of = np.empty(len(costs), dtype=np.int64)
    group_of[order] = min(within_budgets, key=samples.time)
    return GroupingResult(group_of, parts)


class _SortedSamples(msgspec.Struct, frozen=True):
    """Samples sorted by their padded times, largest first, for `parts` groups."""

    config: PlanConfig
    costs: Int64
    padded_times: Int64
    added_times: Int64
    adds_up: bool  # whether anything is added at all
    parts: int

    def cut_equally(self, place: Int64) -> Int64:
        """Return groups of equal counts; place[i] is sample i's position in some order.

        Where numbers do not divide, the last groups have one more: those of the smallest samples.
        """
        least, more = divmod(len(place), self.parts)
        sizes = np.full(self.parts, least)
        sizes[self.parts - more :] += 1
        return np.repeat(np.arange(self.parts), sizes)[place]

    def group_freely(self) -> Int64 | None:
        """Return groups of free counts in rows; None where budgets need more groups."""
        sizes, stop = np.maximum(self.padded_times, 1), self.group_ends()
        top = least_top(sizes, stop, self.parts)
        if top < 0:
            return None
        group_of = np.empty(len(sizes), dtype=np.int64)
        cut(sizes, stop, top, group_of)
        ranks = self.config.ranks
        rows = self.parts // ranks
        if rows == 1 or self.config.waits == "step":
            return group_of
        # Groups of like times side by side: their times differ a little, as counts are whole.
        times = padded_tops(sizes, group_of, self.parts)
        place = np.empty(self.parts, dtype=np.int64)
        place[np.argsort(-times, kind="stable")] = np.arange(self.parts)
        by_time = self._group_in_rows(sizes, stop, place[group_of] // ranks)
        if rows == 2:
            return by_time
        # Of many rows two starts end in different places.
        return min(by_time, self._group_in_rows(sizes, stop, group_of // ranks), key=self.time)

    def _group_in_rows(self, sizes: Int64, stop: Int64, row_of: Int64) -> Int64:
        """Return groups of free counts, the rows improved from those that samples begin in."""
        ranks = self.config.ranks
        group_of = np.empty(len(sizes), dtype=np.int64)
        rows = _better_rows(sizes, stop, ranks, self.parts // ranks, row_of)
        for row, (samples, top) in enumerate(rows):
            inner = np.empty(len(samples), dtype=np.int64)
            cut(sizes[samples], _stop_within(stop, samples), top, inner)
            group_of[samples] = row * ranks + inner
        return group_of

    def group_ends(self) -> Int64:
        """Return where a group that begins at each sample must end: kernels.padded.stops."""
        if not self.config.limited:
            return np.full(len(self.costs), len(self.costs))
        return stops(self.costs, self._is_padded(), budget_array(self.config.budgets))

    def groups_needed(self) -> int:
        """Return how many groups budgets need."""
        stop, begin, groups = self.group_ends(), 0, 0
        while begin < len(stop):
            begin, groups = int(stop[begin]), groups + 1
        return groups

    def even_out_added(self, group_of: Int64) -> Int64:
        """Return groups after exchanges that even out what adds up, where anything does."""
        config = self.config
        if not self.adds_up or config.ranks < 2 or config.waits == "step":
            return group_of
        spare = 0 if config.equal_counts else _SPARE_SLOTS
        slots = make_slots(self.costs, group_of, self.parts, spare)
        even_out(
            slots, self.padded_times, self.added_times, self.costs, self._is_padded(),
            budget_array(config.budgets), config.ranks, _SEARCHES_PER_RANK, _PARTNERS, _TRIES,
        )  # fmt: skip
        return read_slots(slots, len(group_of))

    def is_within_budgets(self, group_of: Int64) -> bool:
        """Return whether all groups are within budgets, but for samples alone in theirs."""
        if not self.config.limited:
            return True
        loads = padded_loads(self.costs, group_of, self.parts, self.config.padded_columns)
        over = (loads > budget_array(self.config.budgets)).any(axis=1)
        return bool((np.bincount(group_of, minlength=self.parts)[over] == 1).all())

    def time(self, group_of: Int64) -> int:
        """Return the step's time: of all rows, or all work where ranks wait once a step."""
        loads = [padded_tops(self.padded_times, group_of, self.parts)]
        if self.adds_up:
            loads.append(group_loads(self.added_times[:, None], group_of, self.parts)[:, 0])
        if self.config.waits == "step":
            return sum(int(load.sum()) for load in loads)
        ranks = self.config.ranks
        return sum(int(load.reshape(-1, ranks).max(axis=1).sum()) for load in loads)

    def _is_padded(self) -> Int64:
        return np.array([name in self.config.padded for name in self.config.resources], np.int64)


def _better_rows(
    sizes: Int64, stop: Int64, ranks: int, rows: int, row_of: Int64
) -> list[tuple[Int64, int]]:
    """Return each row's samples and top after two rows at a time have exchanged samples."""
    points = _TRIED_TOPS if ranks < _MANY_RANKS else _TRIED_TOPS_OF_MANY
    members = [np.flatnonzero(row_of == row) for row in range(rows)]
    tops = [least_top(sizes[samples], _stop_within(stop, samples), ranks) for samples in members]
    for _ in range(_SWEEPS if rows > 2 else 1):
        before = sum(tops)
        for first, second in _pairs(rows):
            both = np.sort(np.concatenate([members[first], members[second]]))
            both_sizes, ends = sizes[both], _stop_within(stop, both)
            high, low = max(tops[first], tops[second]), min(tops[first], tops[second])
            new_tops = (
                best_tops(both_sizes, ends, ranks, high, low, points) if len(both) else (high, low)
            )
            # never worse: a pair that gains nothing stays as it is
            if sum(new_tops) >= high + low:
                continue
            inner = np.empty(len(both), dtype=np.int64)
            cut_in_two(both_sizes, ends, ranks, *new_tops, inner)
            for row, number in ((first, 0), (second, 1)):
                members[row] = both[inner == number]
                tops[row] = least_top(sizes[members[row]], _stop_within(stop, members[row]), ranks)
        if sum(tops) == before:
            break
    return list(zip(members, tops, strict=True))


def _pairs(rows: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows, neighbours first; of many rows only those that are near."""
    farthest = rows if rows <= _FEW_ROWS else _NEAR
    for apart in range(1, farthest):
        for row in range(rows - apart):
            yield row, row + apart


def _stop_within(stop: Int64, samples: Int64) -> Int64:
    """Return the ends (n,) for some of the samples, ascending numbers `samples`, among themselves.

    A group of fewer samples between the same first and last holds no more than the whole one.
    """
    if len(stop) and stop[0] == len(stop):  # none is limited: stops never fall
        return np.full(len(samples), len(samples))
    return np.searchsorted(samples, stop[samples])
