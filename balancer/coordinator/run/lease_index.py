"""Leases by number, by worker and by sample: no question walks all of them."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..delivery.sample import Sample


class GrantedLease(msgspec.Struct, eq=False):
    """A lease: its open samples by ordinal, in the order of work.

    `shown_at` is when the worker last showed a result; `shared` if another worker has been leased
    the same samples as well. `granted` are the ordinals that it was granted with; `alone`: its
    only sample is suspected, and worked on beside no other.
    """

    number: int
    kind: str
    worker: bytes
    deadline: float
    samples: dict[int, Sample] = msgspec.field(default_factory=dict)
    shown_at: float = 0.0
    shared: bool = False
    granted: frozenset[int] = frozenset()
    alone: bool = False


def has_suspect(lease: GrantedLease) -> bool:
    """Return whether a sample that is open on a lease is suspected of killing workers."""
    return any(sample.crash_count for sample in lease.samples.values())


class LeaseIndex:
    """A set of leases, in the order in which they were added."""

    def __init__(self, note_change: Callable[[bytes], None] = lambda _: None) -> None:
        """`note_change` is told each worker that gets a lease more or less."""
        self._note_change = note_change
        self._by_number: dict[int, GrantedLease] = {}
        self._of_worker: dict[bytes, dict[int, GrantedLease]] = {}
        self._of_sample: dict[int, GrantedLease] = {}
        # Further leases of a sample, oldest first: only of shared ones.
        self._also: dict[int, list[GrantedLease]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[GrantedLease]:
        return iter(self._by_number.values())

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def get(self, number: int) -> GrantedLease | None:
        """Return a lease, None if it is not here."""
        return self._by_number.get(number)

    def of_worker(self, worker: bytes) -> list[GrantedLease]:
        """Return a worker's leases, oldest first."""
        return list(self._of_worker.get(worker, {}).values())

    def first(self, worker: bytes) -> int | None:
        """Return the number of a worker's oldest lease, None if it has none."""
        return next(iter(self._of_worker.get(worker, ())), None)

    def count(self, worker: bytes) -> int:
        """Return how many leases a worker has."""
        return len(self._of_worker.get(worker, ()))

    def workers(self) -> Iterator[tuple[bytes, int]]:
        """Return the workers that have leases, and how many."""
        return ((worker, len(leases)) for worker, leases in self._of_worker.items())

    def with_sample(self, ordinal: int) -> list[GrantedLease]:
        """Return the leases that a sample is open on."""
        first = self._of_sample.get(ordinal)
        return [] if first is None else [first, *self._also.get(ordinal, ())]

    def holds_sample(self, ordinal: int) -> bool:
        """Return whether a sample is open on a lease."""
        return ordinal in self._of_sample

    def add(self, lease: GrantedLease) -> None:
        """Add a lease."""
        self._by_number[lease.number] = lease
        self._of_worker.setdefault(lease.worker, {})[lease.number] = lease
        if self._of_sample.keys().isdisjoint(lease.samples.keys()):
            self._of_sample.update(dict.fromkeys(lease.samples, lease))
        else:
            for ordinal in lease.samples:
                if self._of_sample.setdefault(ordinal, lease) is not lease:
                    self._also.setdefault(ordinal, []).append(lease)
        self._note_change(lease.worker)

    def pop(self, number: int) -> GrantedLease | None:
        """Remove a lease and return it, None if it is not here."""
        lease = self._by_number.pop(number, None)
        if lease is None:
            return None
        own = self._of_worker[lease.worker]
        del own[number]
        if not own:
            del self._of_worker[lease.worker]
        if not self._also:
            of_sample = self._of_sample
            for ordinal in lease.samples:
                del of_sample[ordinal]
        else:
            for ordinal in lease.samples:
                self._forget_sample(lease, ordinal)
        self._note_change(lease.worker)
        return lease

    def pop_sample(self, lease: GrantedLease, ordinal: int) -> Sample | None:
        """Take a sample off a lease, None if it is not on it; a lease without samples is over."""
        sample = lease.samples.pop(ordinal, None)
        if sample is not None:
            self._forget_sample(lease, ordinal)
        if not lease.samples:
            self.pop(lease.number)
        return sample

    def pop_samples(self, lease: GrantedLease, ordinals: Sequence[int]) -> dict[int, Sample]:
        """Take samples off a lease, and return those that are on it."""
        if len(ordinals) == len(lease.samples) and lease.samples.keys() == set(ordinals):
            # All that it has, which is what comes mostly: at once.
            self.pop(lease.number)
            found, lease.samples = lease.samples, {}
            return found
        popped = ((ordinal, self.pop_sample(lease, ordinal)) for ordinal in ordinals)
        return {ordinal: sample for ordinal, sample in popped if sample is not None}

    def clear(self) -> None:
        """Remove all leases."""
        self._by_number.clear()
        self._of_worker.clear()
        self._of_sample.clear()
        self._also.clear()

    def _forget_sample(self, lease: GrantedLease, ordinal: int) -> None:
        also = self._also.get(ordinal) if self._also else None
        if also is None:
            del self._of_sample[ordinal]
            return
        if self._of_sample[ordinal] is lease:
            self._of_sample[ordinal] = also.pop(0)
        else:
            also.remove(lease)
        if not also:
            del self._also[ordinal]
