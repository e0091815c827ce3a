"""The samples of a run that no step has taken yet: what is to be measured, and what is known.

A sample is an object from the time when it is first leased to be measured. Where a window has a few
thousand samples it stays one. In mode "epoch" all samples of the epoch are planned together, maybe
a hundred million: there its costs and its size go into arrays, and the object goes, unless there is
more to know of it. It loses the name that came with the costs; that comes again when it is decoded.
"""

from collections import deque

import numpy as np

from ...planning.kernels.arrays import Int64
from ..delivery.sample import Sample


class OpenSamples:
    """Samples by ordinal, from `begin` up to an end that moves on.

    end: the ordinal after the last that is to be measured.
    """

    def __init__(self, order: Int64, begin: int, resources: int, shrinks: bool) -> None:
        """`order` maps an ordinal to a position in the source; `resources` are those of a cost.

        `shrinks` says to keep no object of a sample of which only the costs are known.
        """
        self._order = order
        self._begin = begin
        self._resources = resources
        self._shrinks = shrinks
        rows = len(order) - begin if shrinks else 0
        # The kernel gives pages for what has been written to.
        self._costs = np.zeros((rows, resources), np.int64)
        self._nbytes = np.zeros(rows, np.int64)
        self._samples: dict[int, Sample] = {}
        # Samples whose lease was lost, and the first of those that were on none yet.
        self._again: deque[Sample] = deque()
        self._fresh = self.end = begin

    @property
    def to_probe(self) -> int:
        """The number of samples that wait to be measured."""
        return len(self._again) + self.end - self._fresh

    def open(self, end: int) -> None:
        """Add the samples before `end`: they are to be measured."""
        self.end = max(self.end, end)

    def unknown(self, begin: int, end: int) -> int:
        """Return how many of these samples have no costs yet; none of them has been shrunk."""
        seen = range(begin, min(self._fresh, end))
        unseen = max(0, end - max(self._fresh, begin))
        return unseen + sum(self._samples[ordinal].cost is None for ordinal in seen)

    def take_fresh(self, most: int) -> list[Sample]:
        """Take up to `most` samples out that are to be measured, and were on no lease yet."""
        begin = self._fresh
        self._fresh = min(begin + most, self.end)
        indices = self._order[begin : self._fresh].tolist()
        fresh = [Sample(ordinal, index) for ordinal, index in enumerate(indices, begin)]
        self._samples.update((sample.ordinal, sample) for sample in fresh)
        return fresh

    def next_again(self) -> Sample | None:
        """Return the first sample that is to be measured again, None if there is none.

        It may be known by now.
        """
        return self._again[0] if self._again else None

    def pop_again(self) -> None:
        """Take the sample out that `next_again` has returned."""
        self._again.popleft()

    def probe_again(self, sample: Sample) -> None:
        """Put a sample before all others to be measured."""
        self._again.appendleft(sample)

    def seen(self) -> list[Sample]:
        """Return the samples that are objects, first leased first."""
        return list(self._samples.values())

    def shrink(self, sample: Sample) -> None:
        """Note that of a sample nothing is known but its costs and its size."""
        is_more_known = bool(sample.reason or sample.crash_count) or sample.payload is not None
        if not self._shrinks or is_more_known or sample.cost is None:
            return
        if self._samples.pop(sample.ordinal, None) is not None:
            row = sample.ordinal - self._begin
            self._costs[row], self._nbytes[row] = sample.cost, sample.nbytes

    def costs(self, begin: int, end: int) -> Int64:
        """Return the costs of samples (n, resources), all of which are known."""
        if not self._shrinks:
            rows = [self._samples[ordinal].cost for ordinal in range(begin, end)]
            return np.array(rows, dtype=np.int64).reshape(-1, self._resources)
        for ordinal, sample in self._samples.items():
            self._costs[ordinal - self._begin] = sample.cost or 0
        return self._costs[begin - self._begin : end - self._begin]

    def name(self, ordinal: int) -> str:
        """Return what an error calls a sample."""
        sample = self._samples.get(ordinal)
        return repr(sample.key) if sample is not None else f"{self._order[ordinal]} of the source"

    def find(self, ordinal: int) -> Sample:
        """Return a sample whose costs are known."""
        sample = self._samples.get(ordinal)
        if sample is None:
            row = ordinal - self._begin
            cost, nbytes = tuple(self._costs[row].tolist()), int(self._nbytes[row])
            sample = Sample(ordinal, int(self._order[ordinal]), cost=cost, nbytes=nbytes)
            self._samples[ordinal] = sample
        return sample

    def forget(self, ordinal: int) -> Sample | None:
        """Forget a sample; return it if there is an object."""
        return self._samples.pop(ordinal, None)

    def forget_before(self, end: int) -> list[Sample]:
        """Forget all samples before an ordinal; return those that are objects."""
        gone = [ordinal for ordinal in self._samples if ordinal < end]
        return [self._samples.pop(ordinal) for ordinal in gone]
