"""Leases: which worker works on which samples, until when.

A lease names samples and has a deadline. Every result, and each sample that the worker reports to
have begun, renews all leases of that worker. A lease ends when all its samples are done, when it
expires, or when its worker is lost; `granting.py` returns what is left of it to be leased again.

An expired lease is *still usable*: its worker is late, not gone, and a result under it counts if it
comes before anybody else's. This ends when the worker is lost, gets another lease, or shows a
result of a later lease.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ..delivery.sample import ORDINAL, Sample

# Leases that a worker has at a time: one to work on, one to go on with.
LEASES_PER_WORKER = 2


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


def wanted(lease: GrantedLease) -> list[Sample]:
    """Return the open samples of a lease that are needed: of some the ranks need no more."""
    is_probe = lease.kind == "probe"
    return [sample for sample in lease.samples.values() if is_probe or sample.reserved]


class LeaseTable:
    """The leases of a run, oldest first. Methods named `take_...` remove leases and return them."""

    def __init__(
        self,
        lease_s: float = math.inf,
        last: int = 0,
        note_change: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`lease_s` is how long a lease lasts without a result; numbers continue after `last`.

        `note_change` is told each worker that gets a lease more or less.
        """
        self.lease_s = lease_s
        self.last = last
        self._note_change = note_change
        self._by_number: dict[int, GrantedLease] = {}
        self._of_worker: dict[bytes, dict[int, GrantedLease]] = {}
        # Those that have expired and are still usable: few, and in none of the above.
        self._late: dict[int, GrantedLease] = {}
        # Those whose samples others have done, to be revoked.
        self.useless: list[GrantedLease] = []

    def __iter__(self) -> Iterator[GrantedLease]:
        return iter(self._by_number.values())

    def of_worker(self, worker: bytes) -> list[GrantedLease]:
        """Return a worker's leases, oldest first."""
        return list(self._of_worker.get(worker, {}).values())

    def count(self, worker: bytes) -> int:
        """Return how many leases a worker has."""
        return len(self._of_worker.get(worker, ()))

    def count_or_full(self, worker: bytes) -> int:
        """Return how many leases a worker has; as if it had all while it works on one alone.

        What it is given besides might end it before the result of that one has left it.
        """
        own = self.of_worker(worker)
        return LEASES_PER_WORKER if any(each.alone for each in own) else len(own)

    def pop(self, number: int) -> GrantedLease | None:
        """Remove a lease and return it, None if it is not here."""
        lease = self._by_number.pop(number, None)
        if lease is None:
            return None
        own = self._of_worker[lease.worker]
        del own[number]
        if not own:
            del self._of_worker[lease.worker]
        self._note_change(lease.worker)
        return lease

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
        self._forget_late(worker)
        self.last += 1
        lease = GrantedLease(self.last, kind, worker, now + self.lease_s, shown_at=now)
        samples = list(samples)
        lease.samples = dict(zip(map(ORDINAL, samples), samples, strict=True))
        lease.granted = frozenset(lease.samples)
        lease.alone = len(lease.samples) == 1 and has_suspect(lease)
        if shared is not None:
            lease.shared = shared.shared = True
        self._by_number[lease.number] = lease
        self._of_worker.setdefault(worker, {})[lease.number] = lease
        self._note_change(worker)
        return lease

    def complete(
        self, worker: bytes, number: int, ordinals: Sequence[int], now: float
    ) -> tuple[str, dict[int, Sample]]:
        """Take samples off all leases: their results have come. Return the kind of work, and them.

        Samples that are not on this lease (any more) are left out: all, if it is not the worker's.
        """
        lease = self.find(worker, number)
        if lease is None:
            return "", {}
        for each in self.of_worker(worker):
            each.deadline, each.shown_at = now + self.lease_s, now
        # Only there can somebody else have been leased the same samples.
        others = [*self._late.values()]
        if lease.shared or number in self._late:
            others += self
        found = self._take_off(lease, ordinals)
        for other in others:
            if other.kind == lease.kind and self._take_off(other, found) and not other.samples:
                self.useless.append(other)
        return lease.kind, found

    def find(self, worker: bytes, number: int) -> GrantedLease | None:
        """Return a worker's lease under which a result can come, None if it has no such."""
        lease = self._by_number.get(number) or self._late.get(number)
        return lease if lease is not None and lease.worker == worker else None

    # --- lost leases

    def take_expired(self, now: float) -> list[GrantedLease]:
        """Take the leases whose deadline has passed; they are still usable."""
        return self._expire([held for held in self if held.deadline <= now])

    def take_without_result(self, worker: bytes, since: float) -> list[GrantedLease]:
        """Take a worker's leases without a result since a time; they are still usable."""
        return self._expire([held for held in self.of_worker(worker) if held.shown_at <= since])

    def take_skipped(self, worker: bytes, number: int) -> list[GrantedLease]:
        """Take a worker's leases before this one, of which it has shown a result.

        A worker works on its leases in order, so what is open of the former ones was lost on its
        way to the worker or back.
        """
        self._forget_late(worker, number)
        skipped = [held for held in self.of_worker(worker) if held.number < number]
        for lease in skipped:
            self.pop(lease.number)
        return skipped

    def take_of_worker(self, worker: bytes) -> list[GrantedLease]:
        """Take all leases of a worker."""
        self._forget_late(worker)
        lost = self.of_worker(worker)
        for lease in lost:
            self.pop(lease.number)
        return lost

    def take_all(self) -> list[GrantedLease]:
        """Take all leases."""
        leases = list(self)
        for index in (self._by_number, self._of_worker, self._late):
            index.clear()
        return leases

    # --- questions

    def slowest(self, before: float) -> GrantedLease | None:
        """Return the lease without a result for longest, if its last is not after `before`.

        Leases that are shared already are left out, those of which nothing is needed, and those
        with a suspected sample, which must not kill another worker meanwhile.
        """
        waiting = [
            held
            for held in self
            if held.shown_at <= before and not (held.shared or has_suspect(held)) and wanted(held)
        ]
        return min(waiting, key=lambda held: held.shown_at, default=None)

    # --- inside

    def _expire(self, leases: list[GrantedLease]) -> list[GrantedLease]:
        for lease in leases:
            self.pop(lease.number)
            self._late[lease.number] = lease
        return leases

    def _forget_late(self, worker: bytes, before: float = math.inf) -> None:
        """Forget a worker's expired leases: no result of them can come any more."""
        for lease in list(self._late.values()):
            if lease.worker == worker and lease.number < before:
                del self._late[lease.number]

    def _take_off(self, lease: GrantedLease, ordinals: Iterable[int]) -> dict[int, Sample]:
        """Take samples off a lease, and return those that are on it; without samples it is over."""
        own = lease.samples
        found = {ordinal: own.pop(ordinal) for ordinal in ordinals if ordinal in own}
        if not own and self.pop(lease.number) is None:
            self._late.pop(lease.number, None)
        return found
