"""The recipe of a mixture, and the order that an epoch of it has: numbers only, no sample is read.

A *row* is a sample of one pass over its source: its number is that of the source's first row, and
pass x samples + sample. Each pass has an order of its own, from (seed, source, pass), where passes
are counted over all epochs.
"""

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..kernels.arrays import Int64
from ..problem.costs import MAX_COST
from ..problem.shuffle import derive_seed, permutation
from .shares import DueShares, Floats, Jobs, earliest_due, make_jobs, make_targets, spread_evenly

FIRST, ALL = "first", "all"
# An epoch whose rule makes it longer is a mistake.
MOST = 1 << 31


class Begun(NamedTuple):
    """Where a source stands: passes over it that were finished, and samples of the next."""

    passes: int
    samples: int


@dataclass(frozen=True)
class Recipe:
    """What decides a mixture's orders.

    sizes: samples of each source. schedule: from which total on which weights (sources,) hold.
    epoch: how many samples it has, or the name of the source that ends it, FIRST or ALL. repeats:
    the sources that begin again. costs: of each source's samples (n,), where weights share a cost;
    None where they share samples. begun: where sources stand before the first epoch. continues: an
    epoch begins where sources stood at the end of the one before, not with a new pass; by samples.
    known_passes: `passes`, where rows are looked up without the costs that decide it.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    schedule: tuple[tuple[int, Floats], ...]
    epoch: int | str
    repeats: Collection[str]
    costs: tuple[Int64, ...] | None = None
    begun: Mapping[str, Begun] = field(default_factory=dict)
    continues: bool = False
    known_passes: tuple[int, ...] = ()

    @cached_property
    def totals(self) -> Floats:
        """All that each source has of what the weights share."""
        if self.costs is None:
            return np.array(self.sizes, np.float64)
        return np.array([column.sum() for column in self.costs], np.float64)

    @cached_property
    def _ends(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each source ends with its last sample, so that the others share its part."""
        return np.array([name not in self.repeats for name in self.names])

    def samples(self, shuffle: bool = True) -> int:
        """Return the number of samples of an epoch, the same of all that are shuffled, or not."""
        if isinstance(self.epoch, int):
            return self.epoch
        return len(self._fixed) if self.costs is None else int(self._due[shuffle].sum())

    @cached_property
    def passes(self) -> tuple[int, ...]:
        """How many passes over each source an epoch may reach into."""
        if self.known_passes:
            return self.known_passes
        first = [self._stands(number, 0).samples for number in range(len(self.sizes))]
        if self.continues:  # wherever in a pass an epoch may begin
            first = [size - 1 for size in self.sizes]
        return tuple(
            max(1, -(-(int(count) + begun) // size))
            for count, begun, size in zip(self._most, first, self.sizes, strict=True)
        )

    @cached_property
    def first_rows(self) -> Int64:
        """The first row of each source, and how many there are (sources + 1,)."""
        rows = [count * size for count, size in zip(self.passes, self.sizes, strict=True)]
        return np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)

    @cached_property
    def _fixed(self) -> Int64:
        """The source of each of an epoch's samples where they count 1: in all epochs the same."""
        targets = self._targets()
        self._check_length(targets.end)
        most = targets.due[-1].astype(np.int64) + 2
        most = np.where(self._ends, np.minimum(most, self.sizes), most)
        jobs = make_jobs(targets, [np.ones(count, np.int64) for count in most])
        count = int(np.ceil(targets.end)) if isinstance(self.epoch, str) else self.epoch
        sources = jobs.source[earliest_due(jobs, count)]
        return sources[: self._find_end(sources)] if isinstance(self.epoch, str) else sources

    @cached_property
    def _taken(self) -> Int64:
        """The samples of each source in an epoch (sources,), where they count 1."""
        counts: Int64 = np.bincount(self._fixed, minlength=len(self.sizes))
        return counts

    def _check_length(self, samples: float) -> None:
        if samples > MOST:
            raise ValueError(
                f"an epoch would have {samples:,.0f} samples until epoch={self.epoch!r} ends "
                "it: give it more weight, or epoch= a number of samples"
            )

    def _find_end(self, sources: Int64) -> int:
        """Return after how many samples the epoch has ended by its rule."""
        ends = np.full(len(self.sizes), len(sources))
        for number, size in enumerate(self.sizes):
            places = np.flatnonzero(sources == number)
            if len(places) >= size:
                ends[number] = places[size - 1] + 1
        return int(ends[self._ender(ends)])

    def _ender(self, ends: Any) -> int:
        """Return the source that ends an epoch, by where each has been through (sources,)."""
        if self.epoch in self.names:
            return self.names.index(str(self.epoch))
        return int(np.argmin(ends) if self.epoch == FIRST else np.argmax(ends))

    def _targets(self, until: float | None = None) -> DueShares:
        """Return the targets up to a total; by default of an epoch."""
        dropped, sizes, last = self._ends.tolist(), self.totals, self.epoch
        if isinstance(last, int):  # as far as the last sample's deadline
            return make_targets(self.schedule, sizes, dropped, until or last + 1.0)
        is_over: Any = lambda due: (due >= sizes)[self._ender(due < sizes)]  # noqa: E731
        return make_targets(self.schedule, sizes, dropped, is_over=is_over)

    # --- by a cost

    @cached_property
    def _ended(self) -> tuple[DueShares, int]:
        """Targets up to where a source ends the epoch, and which does: its last sample is last."""
        targets = self._targets()
        ends = [targets.first_reaching(n, total) for n, total in enumerate(self.totals)]
        return targets, self._ender(ends)

    @cached_property
    def _due(self) -> tuple[Int64, Int64]:
        """The samples of each source in an epoch that a source ends (sources,), and of a shuffle.

        They are those whose costs come closest to the source's target. Of a shuffle the mean cost
        says how many (see spread_evenly), so that all epochs are of one length.
        """
        assert self.costs is not None
        means = [np.full(len(column), column.sum() / len(column)) for column in self.costs]
        return self._closest(self.costs), self._closest(means)

    def _closest(self, costs: Sequence[Int64 | Floats]) -> Int64:
        (targets, ender), sizes = self._ended, np.array(self.sizes)
        passes, remainder = np.divmod(targets.due[-1], self.totals)
        self._check_length(float((passes * sizes).sum()))
        of_last = [
            int(np.searchsorted(np.cumsum(column) - column / 2, amount, "right"))
            for column, amount in zip(costs, remainder, strict=True)
        ]
        due: Int64 = passes.astype(np.int64) * sizes + of_last
        if self.epoch == FIRST:
            due = np.minimum(due, sizes - 1)
        elif self.epoch == ALL:
            due = np.maximum(due, sizes)
        due = np.where(self._ends, np.minimum(due, sizes), due)
        due[ender] = sizes[ender]
        return due

    @property
    def _largest(self) -> float:
        """More than an order by cost is off: two of the largest samples."""
        return 2.0 * max(int(column.max()) for column in self.costs or ())

    @cached_property
    def _longest(self) -> DueShares:
        """Targets up to where an epoch of a number of samples by cost has certainly ended.

        Each source is at most a few of its largest samples off its target.
        """
        sizes, totals, largest = np.array(self.sizes), self.totals, self._largest
        until = float(totals.min())
        while True:
            targets = self._targets(until)
            due = targets.due[-1]
            sure = sizes * np.floor(np.maximum(due - largest, 0) / totals)
            sure = np.where(self._ends & (due >= totals), sizes, sure)
            if sure.sum() >= self.samples() or targets.end < until:
                return targets
            until *= 1.5

    @cached_property
    def _most(self) -> Int64:
        """The samples of each source that no epoch has more of (sources,)."""
        if self.costs is None:
            return self._taken
        if isinstance(self.epoch, str):
            return np.maximum(*self._due)
        most = np.ceil((self._longest.due[-1] + self._largest) / self.totals)
        return (np.where(self._ends, 1, most) * self.sizes).astype(np.int64)

    # --- orders

    def check(self) -> None:
        """Raise ValueError for an epoch that the sources cannot fill."""
        samples, longest = self.samples(), self._most.sum()
        if longest < samples:
            raise ValueError(
                f"an epoch of {samples} samples, and by these weights the sources have "
                f"{longest}: let more repeat, or give fewer"
            )

    def facts(self) -> dict[str, Any]:
        """Return all that decides the order, as JSON values; costs are packed."""
        costs = {} if self.costs is None else {"costs": [*map(_packed, self.costs)]}
        return {**self.row_facts(), **costs}

    @cached_property
    def digest(self) -> str:
        """A hash of all that decides the order."""
        text = json.dumps(self.facts(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def row_facts(self) -> dict[str, Any]:
        """Return what says of which source and pass each row is, and all rules, as JSON values."""
        return {
            "names": [*self.names],
            "sizes": [*self.sizes],
            "schedule": [[start, weights.tolist()] for start, weights in self.schedule],
            "epoch": self.epoch,
            "repeats": [*self.repeats],
            "begun": {name: [*begun] for name, begun in self.begun.items()},
            "continues": self.continues,
            "known_passes": [] if self.costs is None else [*self.passes],
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Recipe":
        """Return the recipe that facts() describe; ValueError where they do not."""
        try:
            recipe = cls(
                tuple(map(str, facts["names"])), tuple(map(int, facts["sizes"])),
                tuple((int(at), np.array(shares, np.float64)) for at, shares in facts["schedule"]),
                facts["epoch"] if isinstance(facts["epoch"], str) else int(facts["epoch"]),
                tuple(map(str, facts["repeats"])),
                _unpacked(facts["costs"], facts["sizes"]) if "costs" in facts else None,
                {str(name): Begun(*map(int, n)) for name, n in facts["begun"].items()},
                bool(facts["continues"]), tuple(map(int, facts["known_passes"])),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ValueError(f"the mixture's description is none: {error!r:.200}") from error
        count, passes = len(recipe.names), recipe.known_passes
        weights = [shares for _, shares in recipe.schedule]
        needed = {
            "pass": not passes or (len(passes) == count and min(passes) > 0),
            "size above 0": count and len(recipe.sizes) == count and min(recipe.sizes) > 0,
            "cost": recipe.costs is None or recipe.totals.all(),
            "weight": weights and all(
                shares.shape == (count,) and np.isfinite(shares).all() and (shares >= 0).all()
                for shares in weights
            ),
        }  # fmt: skip
        for part, is_there in needed.items():
            if not is_there:
                raise ValueError(f"the mixture's description is none: each source has a {part}")
        if isinstance(recipe.epoch, str) and recipe.epoch not in (FIRST, ALL, *recipe.names):
            raise ValueError(f"the mixture's epoch is {recipe.epoch!r:.80}, which nothing ends")
        return recipe

    def _stands(self, number: int, epoch: int) -> Begun:
        """Return where a source stands before an epoch."""
        begun = self.begun.get(self.names[number], Begun(0, 0))
        if self.continues:
            size = self.sizes[number]
            had = epoch * int(self._taken[number]) + begun.samples
            return Begun(begun.passes + had // size, had % size)
        return begun if epoch == 0 else Begun(begun.passes + epoch * self.passes[number], 0)

    def order(self, seed: int, epoch: int, shuffle: bool = True) -> Int64:
        """Return the rows of an epoch's samples, in order (samples,)."""
        if self.costs is not None:
            return self._order_by_cost(seed, epoch, shuffle)
        rows = np.empty(len(self._fixed), np.int64)
        for number, count in enumerate(self._taken.tolist()):
            rows[self._fixed == number] = self._rows(number, seed, epoch, count, shuffle)
        return rows

    def _rows(self, number: int, seed: int, epoch: int, count: int, shuffle: bool) -> Int64:
        """Return the first rows of a source in an epoch, in its order."""
        size, stands = self.sizes[number], self._stands(number, epoch)
        passes = -(-(count + stands.samples) // size)
        parts = [
            number_of_pass * size
            + self._pass(number, seed, stands.passes + number_of_pass, shuffle)
            for number_of_pass in range(passes)
        ]
        rows: Int64 = np.concatenate([np.empty(0, np.int64), *parts])
        due_rows: Int64 = rows[stands.samples : stands.samples + count] + self.first_rows[number]
        return due_rows

    def _pass(self, number: int, seed: int, passed: int, shuffle: bool) -> Int64:
        pass_seed = derive_seed(seed, name_number(self.names[number]), passed)
        order = permutation(self.sizes[number], pass_seed & 0xFFFFFFFF, 0, shuffle)
        if self.costs is None or not shuffle:
            return order
        return order[spread_evenly(self.costs[number][order])]

    def _order_by_cost(self, seed: int, epoch: int, shuffle: bool) -> Int64:
        assert self.costs is not None
        sizes, ends = np.array(self.sizes), isinstance(self.epoch, str)
        targets = self._ended[0] if ends else self._longest
        begun = [self._stands(number, epoch).samples for number in range(len(sizes))]
        most = self._due[shuffle] if ends else sizes * self.passes - begun
        rows, costs = list[Int64](), list[Int64]()
        for number, column in enumerate(self.costs):
            rows.append(self._rows(number, seed, epoch, int(most[number]), shuffle))
            costs.append(column[(rows[-1] - self.first_rows[number]) % len(column)])
        jobs, count = make_jobs(targets, costs), self.samples(shuffle)
        # Others begin when so many are over: none is late by more than the largest sample.
        last = np.sort(jobs.due)[:count][-1] + int(self._largest)
        begin = np.minimum(jobs.begin, int(targets.end))
        near = np.flatnonzero(begin <= last)
        jobs = Jobs(jobs.source[near], begin[near], jobs.due[near])
        order = near[earliest_due(jobs, count, np.concatenate(costs)[near])]
        if ends:
            last = int(most[: self._ended[1] + 1].sum()) - 1
            order = np.append(order[order != last], last)
        return np.concatenate(rows)[order]

    def stands_after(self, rows: Int64, epoch: int) -> dict[str, Begun]:
        """Return where each source stands after an epoch's first rows (n,)."""
        places = np.searchsorted(self.first_rows, rows, side="right") - 1
        taken = np.bincount(places, minlength=len(self.sizes))
        standings = {}
        for number, name in enumerate(self.names):
            begun = self._stands(number, epoch)
            passes, samples = divmod(begun.samples + int(taken[number]), self.sizes[number])
            standings[name] = Begun(begun.passes + passes, samples)
        return standings


def _packed(column: Int64) -> str:
    """Return costs as text; neighbours of one size make it short."""
    return base64.b64encode(zlib.compress(column.astype("<i8").tobytes())).decode()


def _unpacked(columns: Sequence[str], sizes: Sequence[int]) -> tuple[Int64, ...]:
    """Return the costs in texts, of as many samples each; ValueError where they are not."""
    columns_of_costs = []
    for packed, size in zip(columns, sizes, strict=True):
        try:
            unpacked = zlib.decompressobj().decompress(base64.b64decode(packed), 8 * size + 1)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"costs cannot be unpacked: {error}") from None
        costs = np.frombuffer(unpacked, "<i8").astype(np.int64)
        if len(costs) != size or (costs < 0).any() or (costs > MAX_COST).any():
            raise ValueError(f"costs are not of {size} samples, or none that can be planned")
        columns_of_costs.append(costs)
    return tuple(columns_of_costs)


def name_number(name: str) -> int:
    """Return 64 bits that stand for a source's name, on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def order_of_rows(
    facts: Mapping[str, Any], count: int, seed: int, epoch: int, shuffle: bool
) -> Int64:
    """Return the order of a mixture's rows in an epoch; facts: Recipe.facts().

    Raises ValueError where the mixture is not of `count` rows.
    """
    recipe = Recipe.from_facts(facts)
    most = recipe.epoch if isinstance(recipe.epoch, int) else 0
    if most > count or (most := int(recipe.first_rows[-1])) != count:
        raise ValueError(f"the mixture has {most} rows, and the workers have {count} samples")
    return recipe.order(seed, epoch, shuffle)
