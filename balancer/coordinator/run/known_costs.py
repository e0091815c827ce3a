"""Keeps what is known of samples that no step has taken yet, and what is to be measured.

Costs and sizes are kept in arrays, so that many samples take little memory, and over the epochs of
a job: what a data set says of a sample does not depend on the epoch, so a later one is planned at
once. Names are not kept. A sample whose name may be needed before it is decoded is measured again:
one that is over budget, and may be refused, and one that could not be used.

A sample is an object from the time when it is first leased to be measured; one that was measured in
an earlier epoch only when a step takes it. Where a window has a few thousand samples the object
stays until then. In mode "epoch" all samples of the epoch are planned together, maybe a hundred
million: there the object goes, unless there is more to know of it than its costs and its size. It
loses the name that came with the costs; that comes again when it is decoded.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from ...planning.kernels.arrays import Int64, Mask
from ...protocol.job_spec import JobSpec
from ..delivery.sample import ORDINAL, Sample

# Of data sets whose costs would take more than this, they are kept for one epoch, if at all.
MOST_BYTES = 512 << 20


class KnownCosts:
    """The costs and sizes that are known; during a run nothing is forgotten."""

    def __init__(self, count: int, budgets: Sequence[int | None]) -> None:
        """There is room for indexes below `count`; `budgets` are the most of each resource."""
        # The kernel gives pages for what has been written to.
        self._costs = np.zeros((count, len(budgets)), np.int64)
        # Size in bytes + 1; 0 where nothing is known.
        self._sizes = np.zeros(count, np.int64)
        most = np.iinfo(np.int64).max
        # The most of each resource.
        self.limits = np.array([most if each is None else each for each in budgets], np.int64)
        self._failed: set[int] = set()
        self._is_empty = True

    def are_known(self, indexes: Int64) -> Mask:
        """Return of which samples (n,) the costs are known (n,)."""
        if self._is_empty:
            return np.zeros(len(indexes), bool)
        return self._sizes[indexes] > 0

    def costs(self, indexes: Int64) -> Int64:
        """Return the costs of samples (n, resources), 0 where they are not known."""
        if self._is_empty:
            return np.zeros((len(indexes), len(self.limits)), np.int64)
        return self._costs[indexes]

    def measured(self, indexes: Int64) -> tuple[list[tuple[int, ...]], list[int]]:
        """Return the costs and the sizes in bytes of samples that are known."""
        costs = [*map(tuple, self._costs[indexes].tolist())]
        return costs, (self._sizes[indexes] - 1).tolist()

    def note(self, indexes: Sequence[int], costs: Sequence[Sequence[int]], nbytes: Int64) -> None:
        """Note the costs and the sizes of samples that were measured."""
        if not len(self._sizes):
            return
        at, rows = np.array(indexes, np.int64), np.array(costs, np.int64)
        fit = (rows <= self.limits).all(axis=1)
        self._costs[at[fit]], self._sizes[at[fit]] = rows[fit], nbytes[fit] + 1
        self._is_empty = False

    def note_failed(self, indexes: Iterable[int]) -> None:
        """Note samples that could not be used: the next run is to measure them again."""
        if len(self._sizes):
            self._failed.update(indexes)

    def forget_failed(self) -> None:
        """Forget samples that could not be used; not during a run."""
        self._sizes[list(self._failed)] = 0
        self._failed.clear()


class CostMemory:
    """Keeps what is known from one run to the next of the same job and data set."""

    def __init__(self) -> None:
        self._key: object = None
        self._known: KnownCosts | None = None

    def known_to(
        self, job: JobSpec, count: int, fingerprint: str, whole: bool, believed: bool
    ) -> KnownCosts:
        """Return what a run begins with, and adds to.

        count, fingerprint: those of the data set. whole: the run needs an array of all costs,
        because it plans a whole epoch. believed: workers are not doubted.
        """
        nbytes = count * (len(job.resources) + 1) * np.dtype(np.int64).itemsize
        is_kept = believed and nbytes <= MOST_BYTES
        key = (job, count, fingerprint)
        if is_kept and self._known is not None and key == self._key:
            self._known.forget_failed()
            return self._known
        known = KnownCosts(count if is_kept or whole else 0, job.plan.budgets)
        self._key, self._known = (key, known) if is_kept else (None, None)
        return known

    def note_failed(self, indexes: Iterable[int]) -> None:
        """Note samples that could not be used: see KnownCosts.note_failed."""
        if self._known is not None:
            self._known.note_failed(indexes)

    def forget(self) -> None:
        """Forget all; a run that goes on keeps what it has."""
        self._key, self._known = None, None


# So many are counted together, without much memory for it.
PART = 1 << 20


class OpenSamples:
    """Samples by ordinal, from `begin` up to an end that moves on.

    end: the ordinal after the last that is to be measured.
    """

    def __init__(self, order: Int64, begin: int, known: KnownCosts, shrinks: bool) -> None:
        """`order` maps an ordinal to an index in the source; `known` is what is known of those.

        `shrinks` says to keep no object of a sample of which only the costs are known.
        """
        self._order = order
        self.known = known
        self._shrinks = shrinks
        # Those that are objects.
        self.seen: dict[int, Sample] = {}
        # Samples whose lease was lost; those from `_fresh` on that are not known, of which `_left`
        # are to be measured, were on none yet.
        self._again: deque[Sample] = deque()
        self._fresh = self.end = begin
        self._left = 0

    def next_samples(self, most: int, workers: int) -> list[Sample]:
        """Return up to `most` samples to probe, in the order of need; a suspected one alone.

        No worker gets more than its share among `workers`, as planning waits for the last sample.
        """
        most = min(most, -(-self.to_probe // workers))
        chosen: list[Sample] = []
        while len(chosen) < most and self._again:
            sample = self._again[0]
            if chosen and (chosen[0].crash_count or sample.crash_count):
                return chosen
            self._again.popleft()
            # A late worker may have reported its costs after the lease expired.
            if sample.cost is None:
                chosen.append(sample)
        if chosen and chosen[0].crash_count:
            return chosen
        return chosen + self._take_fresh(most - len(chosen))

    @property
    def to_probe(self) -> int:
        """The number of samples that wait to be measured."""
        return len(self._again) + self._left

    def open(self, end: int) -> None:
        """Add the samples before `end`: those that are not known are to be measured."""
        self._left += self._not_known(self.end, end)
        self.end = max(self.end, end)

    def unknown(self, begin: int, end: int) -> int:
        """Return how many of these samples, which are open, have no costs yet."""
        objects = (self.seen.get(ordinal) for ordinal in range(begin, min(self._fresh, end)))
        leased = sum(sample is not None and sample.cost is None for sample in objects)
        return leased + self._not_known(max(begin, self._fresh), end)

    def _not_known(self, begin: int, end: int) -> int:
        """Return how many of these samples, which were on no lease yet, are to be measured."""
        return sum(
            int(np.count_nonzero(~self.known.are_known(self._order[at : min(at + PART, end)])))
            for at in range(begin, end, PART)
        )

    def _take_fresh(self, most: int) -> list[Sample]:
        """Take up to `most` samples out that are to be measured, and were on no lease yet."""
        most = min(most, self._left)
        fresh, looked_at = list[Sample](), most
        while len(fresh) < most:
            begin, wanted = self._fresh, most - len(fresh)
            indexes = self._order[begin : min(begin + looked_at, self.end)]
            places = np.flatnonzero(~self.known.are_known(indexes))[:wanted]
            fresh += map(Sample, (begin + places).tolist(), indexes[places].tolist())
            is_cut = len(places) == wanted
            self._fresh = fresh[-1].ordinal + 1 if is_cut else begin + len(indexes)
            looked_at *= 2  # there may be one in a million
        self._left -= len(fresh)
        self.seen.update(zip(map(ORDINAL, fresh), fresh, strict=True))
        return fresh

    def requeue(self, sample: Sample) -> None:
        """Queue a sample whose probe lease was lost to be probed again, before all others."""
        if sample.cost is None:
            self._again.appendleft(sample)

    def note_measured(self, samples: Sequence[Sample]) -> None:
        """Note the costs and sizes that samples have got."""
        if not samples:
            return
        indexes = [sample.index for sample in samples]
        nbytes = np.array([sample.nbytes for sample in samples], np.int64)
        self.known.note(indexes, [sample.cost or () for sample in samples], nbytes)
        if not self._shrinks:
            return
        noted = self.known.are_known(np.array(indexes, np.int64)).tolist()
        for sample in itertools.compress(samples, noted):
            is_more_known = sample.failure or sample.crash_count or sample.payload is not None
            if not is_more_known:
                self.seen.pop(sample.ordinal, None)

    def costs(self, begin: int, end: int) -> Int64:
        """Return the costs of samples (n, resources), all of which have some.

        Those that are not known to later epochs are in objects.
        """
        indexes = self._order[begin:end]
        costs = self.known.costs(indexes)
        others = np.flatnonzero(~self.known.are_known(indexes))
        if len(others):
            found = [self.seen[begin + place].cost or () for place in others.tolist()]
            costs[others] = np.array(found, np.int64)
        return costs

    def take(self, ordinals: Sequence[int]) -> list[Sample]:
        """Return samples that have costs, and forget them."""
        samples = self.seen
        new = [each for each in ordinals if each not in samples] if samples else ordinals
        made: list[Sample] = []
        if new:
            indexes = self._order[np.array(new)]
            costs, nbytes = self.known.measured(indexes)
            made += map(Sample, new, indexes.tolist(), itertools.repeat(""), costs, nbytes)
        if len(made) == len(ordinals):
            return made
        samples.update(zip(new, made, strict=True))
        return [samples.pop(ordinal) for ordinal in ordinals]

    def forget_before(self, end: int) -> list[Sample]:
        """Forget all samples before an ordinal; return those that are objects."""
        gone = [ordinal for ordinal in self.seen if ordinal < end]
        return [self.seen.pop(ordinal) for ordinal in gone]
