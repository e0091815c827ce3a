"""What each source of a mixture is due, and the order that follows it as closely as can be.

Both are counted in what the weights share: samples, or a cost such as tokens. A source's *target*
after a total of x is piecewise linear in x: it grows by the source's weight, which changes where
the schedule says so, and where a source ends that is not repeated.

The order is that of the earliest deadline: a source's next sample may come when its target has
reached what the source has had, and is due when the target reaches that and the sample. Of the
samples that may come, the one that is due first does. For samples that count 1 there is an order
less than one off every target at every prefix (Tijdeman, "The chairman assignment problem", 1980),
and where there is one this finds it, since jobs of unit length with whole deadlines are met by the
earliest first. For costs it is the order of WF2Q (Bennett and Zhang, 1996), which is at most one
sample off.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..kernels.arrays import Int64

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# Deadlines are whole numbers but for rounding.
_ROUNDING = 1e-6
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class DueShares:
    """Targets `due` (k, sources) at totals `points` (k,), both from 0 on; between them linear."""

    points: Floats
    due: Floats

    @property
    def end(self) -> float:
        """The total up to which targets are known."""
        return float(self.points[-1])

    def first_reaching(self, source: int, amounts: Floats) -> Floats:
        """Return the totals at which a source's target reaches each amount; inf for never."""
        return self._find_totals(source, amounts, "left")

    def first_above(self, source: int, amounts: Floats) -> Floats:
        """Return the totals from which on a source's target is above each amount; inf for never."""
        return self._find_totals(source, amounts, "right")

    def _find_totals(self, source: int, amounts: Floats, side: str) -> Floats:
        row = self.due[:, source]
        after = np.searchsorted(row, amounts, side)  # type: ignore[call-overload]
        inside = np.clip(after, 1, len(row) - 1)
        low, high = row[inside - 1], row[inside]
        part = (amounts - low) / np.where(high > low, high - low, 1.0)
        totals = self.points[inside - 1] + part * (self.points[inside] - self.points[inside - 1])
        totals = np.where(after == 0, self.points[0], totals)
        return np.where(after >= len(row), np.inf, totals)


def make_targets(
    schedule: Sequence[tuple[int, Floats]],
    sizes: Floats,
    dropped: Sequence[bool],
    until: float = np.inf,
    is_over: Callable[[Floats], bool] = lambda due: False,  # noqa: ARG005
) -> DueShares:
    """Return the targets of a schedule of weights, up to a total or to targets where it is over.

    schedule: from which total on which weights (sources,) hold, ascending, the first from 0; sizes:
    all that each source has (sources,); dropped: which sources end then, so that the others share
    what was theirs. is_over: is asked wherever a source has been through once. Ends where all
    sources have ended.

    >>> targets = make_targets([(0, np.array([3.0, 1.0]))], np.array([6.0, 9.0]), [True, True])
    >>> targets.points.tolist(), targets.due.tolist()
    ([0.0, 8.0, 15.0], [[0.0, 0.0], [6.0, 2.0], [6.0, 9.0]])
    """
    total, due, part = 0.0, np.zeros(len(sizes)), 0
    points, rows = [total], [due]
    through, may_go = np.zeros(len(sizes), np.bool_), np.array(dropped)
    while total < until and not is_over(due):
        while part + 1 < len(schedule) and schedule[part + 1][0] <= total:
            part += 1
        weights = np.where(through & may_go, 0.0, schedule[part][1])
        later = schedule[part + 1][0] if part + 1 < len(schedule) else np.inf
        if (through & may_go).all():
            break
        if not weights.sum():
            raise ValueError(
                f"from {total:.0f} on no source with a weight has samples left: let some repeat, "
                "give others a weight, or fewer samples an epoch"
            )
        weights = weights / weights.sum()
        ends = np.full(len(sizes), np.inf)
        begun = (weights > 0) & ~through
        ends[begun] = total + (sizes[begun] - due[begun]) / weights[begun]
        at = min(later, until, float(ends.min()))
        if np.isinf(at):  # the last weights, which nothing ends
            raise ValueError(
                "the epoch never ends: a source that should end it has no weight, give it one"
            )
        due = due + weights * (at - total)
        ending = ends <= at * (1 + 1e-12)
        due[ending] = sizes[ending]
        through |= ending
        total = at
        points.append(total)
        rows.append(due)
    return DueShares(np.array(points), np.array(rows))


@dataclass(frozen=True, slots=True)
class Jobs:
    """Samples (n,) that may come, of all sources, each source's in its order: see make_jobs."""

    source: Int64
    begin: Int64
    due: Int64


def make_jobs(targets: DueShares, costs: Sequence[Int64]) -> Jobs:
    """Return from which total on each sample of all sources may come, and when it is due.

    costs: of each source's samples, in its order (n,).
    """
    parts = list[tuple[Int64, Int64, Int64]]()
    for source, column in enumerate(costs):
        had = np.concatenate([[0.0], np.cumsum(column)])
        ends = targets.first_reaching(source, had[1:])
        # One that costs nothing is due when it may come, also where the source ends.
        begins = np.minimum(targets.first_above(source, had[:-1]), ends)
        due = _whole(np.ceil(ends - _ROUNDING))
        parts.append((np.full(len(column), source), _whole(np.floor(begins + _ROUNDING)), due))
    return Jobs(*map(np.concatenate, zip(*parts, strict=True)))


def _whole(values: Floats) -> Int64:
    return np.where(np.isfinite(values), values, NEVER).astype(np.int64)


def earliest_due(jobs: Jobs, count: int, costs: Int64 | None = None) -> Int64:
    """Return the first `count` jobs' numbers in order, or as many as there are in time (m,).

    costs: of each job (n,); without, each counts 1.
    """
    by_due = np.lexsort((jobs.source, jobs.due))
    rank = np.empty(len(by_due), np.int64)
    rank[by_due] = np.arange(len(by_due))
    by_begin = np.argsort(jobs.begin, kind="stable")
    begins, ranks = jobs.begin[by_begin].tolist(), rank[by_begin].tolist()
    begins.append(NEVER)
    steps = None if costs is None else costs[by_due].tolist()
    waiting, order = list[int](), list[int]()
    total, place, last = 0, 0, len(ranks)
    for _ in range(min(count, last)):
        while begins[place] <= total:
            heappush(waiting, ranks[place])
            place += 1
        if not waiting:
            if begins[place] == NEVER:
                break
            heappush(waiting, ranks[place])  # one sample early, by rounding
            place += 1
        job = heappop(waiting)
        order.append(job)
        total += 1 if steps is None else steps[job]
    return by_due[np.array(order, np.int64)]


def spread_evenly(costs: Int64) -> Int64:
    """Return an order of samples whose first k cost about k times the mean, for each k (n,).

    After samples that cost no more than as many means the next is one above the mean, else one that
    is not, each kind in its order: no prefix is off by more than the largest sample.

    >>> spread_evenly(np.array([1, 9, 1, 1, 9, 1, 1, 1])).tolist()
    [1, 0, 2, 3, 4, 5, 6, 7]
    """
    off = costs - costs.sum() / len(costs)
    above = off > 0
    before = np.empty(len(costs))
    for kind in (above, ~above):
        before[kind] = np.cumsum(np.abs(off[kind])) - np.abs(off[kind])
    return np.lexsort((~above, before))
