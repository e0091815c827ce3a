"""Leases: which worker works on which samples, until when.

A lease names samples and has a deadline. Every result, and each sample that the worker reports to
have begun, renews all leases of that worker. A lease ends when all its samples are done, when it
expires, or when its worker is lost; `lost_leases.py` returns what is left of it to be leased again.

An expired lease is *still usable*: its worker is late, not gone, and a result under it counts if it
comes before anybody else's. This ends when the worker is lost, gets another lease, or shows a
result of a later lease.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..delivery.sample import ORDINAL, Sample
from .lease_index import GrantedLease, LeaseIndex, has_suspect


class LeaseTable:
    """All leases, by number. Methods named `take_...` remove and return leases."""

    def __init__(
        self,
        lease_s: float = math.inf,
        last: int = 0,
        note_change: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`lease_s` is how long a lease lasts without a result; numbers continue after `last`.

        `note_change` is told each worker the number of whose leases has changed.
        """
        self.lease_s = lease_s
        self.last = last
        self._leases = LeaseIndex(note_change)
        self._expired_but_usable = LeaseIndex()
        self._useless: list[GrantedLease] = []

    def __len__(self) -> int:
        return len(self._leases)

    # --- granting and results

    def grant(
        self,
        worker: bytes,
        kind: str,
        samples: Iterable[Sample],
        now: float,
        shared: GrantedLease | None = None,
    ) -> GrantedLease:
        """Record a new lease; `shared` is the lease that already has these samples, if any."""
        self._forget_expired(worker)
        self.last += 1
        lease = GrantedLease(self.last, kind, worker, now + self.lease_s, shown_at=now)
        samples = list(samples)
        lease.samples = dict(zip(map(ORDINAL, samples), samples, strict=True))
        lease.granted = frozenset(lease.samples)
        lease.alone = len(lease.samples) == 1 and has_suspect(lease)
        if shared is not None:
            lease.shared = shared.shared = True
        self._leases.add(lease)
        return lease

    def complete(
        self, worker: bytes, number: int, ordinals: Sequence[int], now: float
    ) -> tuple[str, dict[int, Sample]]:
        """Take samples off all leases: their results have come. Return the kind of work, and them.

        Samples that are not on this lease (any more) are left out: all, if it is not the worker's.
        """
        is_expired = number in self._expired_but_usable
        leases = self._expired_but_usable if is_expired else self._leases
        lease = leases.get(number)
        if lease is None or lease.worker != worker:
            return "", {}
        for each in self._leases.of_worker(worker):
            each.deadline, each.shown_at = now + self.lease_s, now
        found = leases.pop_samples(lease, ordinals)
        # Only then can somebody else have been leased the same samples.
        if lease.shared or is_expired or self._expired_but_usable:
            for sample in found.values():
                self._take_from_others(lease.kind, sample)
        return lease.kind, found

    def never_granted(self, worker: bytes, number: int, ordinals: Sequence[int]) -> list[int]:
        """Return the samples of which a worker cannot have a result under this lease.

        None where that is not known, as of leases that are over.
        """
        if number > self.last:
            return list(ordinals)
        lease = self._leases.get(number) or self._expired_but_usable.get(number)
        if lease is None or lease.worker != worker or lease.granted.issuperset(ordinals):
            return []
        return [ordinal for ordinal in ordinals if ordinal not in lease.granted]

    def renew(self, worker: bytes, now: float) -> None:
        """Put off the deadlines of a worker's leases: it makes progress."""
        for lease in self.of_worker(worker):
            lease.deadline = now + self.lease_s

    def remove_samples(self, is_useless: Callable[[Sample], bool]) -> None:
        """Take samples off all leases that nobody needs any more."""
        for lease in list(self._leases):
            for sample in [each for each in lease.samples.values() if is_useless(each)]:
                self._remove_sample(lease, sample)

    def take_useless(self) -> list[GrantedLease]:
        """Return, once, the leases whose samples others have done, or nobody needs."""
        useless, self._useless = self._useless, []
        return useless

    # --- lost leases

    def take_expired(self, now: float) -> list[GrantedLease]:
        """Take the leases whose deadline has passed; they are still usable."""
        return self._expire([held for held in self._leases if held.deadline <= now])

    def take_without_result(self, worker: bytes, since: float) -> list[GrantedLease]:
        """Take a worker's leases without a result since a time; they are still usable."""
        return self._expire([held for held in self.of_worker(worker) if held.shown_at <= since])

    def take_skipped(self, worker: bytes, number: int) -> list[GrantedLease]:
        """Take a worker's leases before this one, of which it has shown a result.

        A worker works on its leases in order, so what is open of the former ones was lost on its
        way to the worker or back.
        """
        self._forget_expired(worker, number)
        first = self._leases.first(worker)
        if first is None or first >= number:
            return []
        skipped = [held for held in self.of_worker(worker) if held.number < number]
        for lease in skipped:
            self._leases.pop(lease.number)
        return skipped

    def take_of_worker(self, worker: bytes) -> list[GrantedLease]:
        """Take all leases of a worker."""
        self._forget_expired(worker)
        lost = self.of_worker(worker)
        for lease in lost:
            self._leases.pop(lease.number)
        return lost

    def take(self, number: int) -> GrantedLease | None:
        """Take one lease, None if there is none of this number."""
        return self._leases.pop(number)

    def clear(self) -> list[GrantedLease]:
        """Take all leases."""
        leases = list(self._leases)
        self._leases.clear()
        self._expired_but_usable.clear()
        return leases

    # --- questions

    def of_worker(self, worker: bytes) -> list[GrantedLease]:
        """Return a worker's leases, oldest first."""
        return self._leases.of_worker(worker)

    def count(self, worker: bytes) -> int:
        """Return how many leases a worker has."""
        return self._leases.count(worker)

    def count_per_worker(self) -> Counter[bytes]:
        """Return how many leases each worker has."""
        return Counter(dict(self._leases.workers()))

    def is_leased(self, sample: Sample) -> bool:
        """Return whether a sample is on a lease that has not expired."""
        return self._leases.holds_sample(sample.ordinal)

    def slowest(self, before: float) -> GrantedLease | None:
        """Return the lease without a result for longest, if its last is not after `before`.

        Leases that are shared already are left out, and those with a suspected sample, which must
        not kill another worker meanwhile.
        """
        waiting = [
            held
            for held in self._leases
            if held.shown_at <= before and not held.shared and not has_suspect(held)
        ]
        return min(waiting, key=lambda held: held.shown_at, default=None)

    def next_deadline(self) -> float:
        """Return the earliest deadline, infinity if there is none."""
        return min((held.deadline for held in self._leases), default=math.inf)

    # --- inside

    def _expire(self, leases: list[GrantedLease]) -> list[GrantedLease]:
        for lease in leases:
            self._leases.pop(lease.number)
            self._expired_but_usable.add(lease)
        return leases

    def _forget_expired(self, worker: bytes, before: float = math.inf) -> None:
        """Forget a worker's expired leases: no result of them can come any more."""
        if not self._expired_but_usable:
            return
        for lease in self._expired_but_usable.of_worker(worker):
            if lease.number < before:
                self._expired_but_usable.pop(lease.number)

    def _take_from_others(self, kind: str, sample: Sample) -> None:
        for leases in (self._leases, self._expired_but_usable):
            for lease in leases.with_sample(sample.ordinal):
                if lease.kind == kind:
                    self._remove_sample(lease, sample)

    def _remove_sample(self, lease: GrantedLease, sample: Sample) -> None:
        leases = self._leases if lease.number in self._leases else self._expired_but_usable
        leases.pop_sample(lease, sample.ordinal)
        if not lease.samples and leases is self._leases:
            self._useless.append(lease)
