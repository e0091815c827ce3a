"""Who works on what, until when.

A lease names samples and a deadline; every result, and each sample that a worker says it has begun,
renews its worker's leases. When one runs out, or its worker is lost, what is left of it goes back.
A lease that ran out is *lapsed*: its worker is late, not gone, and what it has in hand still counts
if it comes before anybody else's. A worker that is lost, or says hello again, has lost these, too.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..delivery.sample import Sample


@dataclass(slots=True)
class GrantedLease:
    """A lease that has been granted: its open samples by ordinal, in the order of work.

    `touched` is when the worker last showed a result; `shared` that another worker has the same
    samples, too.
    """

    number: int
    kind: str
    worker: bytes
    deadline: float
    samples: dict[int, Sample] = field(default_factory=dict)
    touched: float = 0.0
    shared: bool = False


class LeaseTable:
    """All leases, by number."""

    def __init__(self, lease_s: float = math.inf, last: int = 0) -> None:
        """`lease_s` is how long a lease may go without a result; numbers go on after `last`."""
        self.lease_s = lease_s
        self.last = last
        self._leases: dict[int, GrantedLease] = {}
        # Those that ran out: what their workers have in hand still counts if it comes first.
        self._lapsed: dict[int, GrantedLease] = {}
        self._useless: list[GrantedLease] = []

    def grant(
        self,
        worker: bytes,
        kind: str,
        samples: Iterable[Sample],
        now: float,
        shared: GrantedLease | None = None,
    ) -> GrantedLease:
        """Write down a new lease; `shared` is the one that already has these samples."""
        self._end_lapsed(worker)
        self.last += 1
        held = GrantedLease(self.last, kind, worker, now + self.lease_s, touched=now)
        held.samples = {sample.ordinal: sample for sample in samples}
        if shared is not None:
            held.shared = shared.shared = True
        self._leases[self.last] = held
        return held

    def result(
        self, worker: bytes, number: int, ordinal: int, now: float
    ) -> tuple[str, Sample] | None:
        """Take one sample off all leases; None for one that is not (or no longer) the worker's."""
        lapsed = number in self._lapsed
        held = self._lapsed.get(number) if lapsed else self._leases.get(number)
        if held is None or held.worker != worker:
            return None
        self.renew(worker, now)
        for each in self.of(worker):
            each.touched = now
        sample = held.samples.pop(ordinal, None)
        if not held.samples:
            del (self._lapsed if lapsed else self._leases)[number]
        if sample is None:
            return None
        if held.shared or lapsed or self._lapsed:
            self._take_from_others(held.kind, sample)
        return held.kind, sample

    def renew(self, worker: bytes, now: float) -> None:
        """Put the deadlines of a worker's leases off: it has shown that it gets on."""
        for held in self.of(worker):
            held.deadline = now + self.lease_s

    def passed_over(self, worker: bytes, number: int) -> list[GrantedLease]:
        """Remove and return a worker's leases before this one.

        A worker does its leases in order: when one shows a result, what is open of those before
        was lost on its way, there or back.
        """
        self._end_lapsed(worker, number)
        over = [held for held in self.of(worker) if held.number < number]
        for held in over:
            del self._leases[held.number]
        return over

    def slowest(self, before: float) -> GrantedLease | None:
        """Return the lease without a result for longest, if it is since before a time.

        A lease that two have, and one with a suspected sample, is nobody else's.
        """
        alone = [
            held
            for held in self._leases.values()
            if held.touched <= before
            and not held.shared
            and not any(sample.strikes for sample in held.samples.values())
        ]
        return min(alone, key=lambda held: held.touched, default=None)

    def is_held(self, sample: Sample) -> bool:
        """Whether somebody has a sample."""
        return any(sample.ordinal in held.samples for held in self._leases.values())

    def take_useless(self) -> list[GrantedLease]:
        """Return, once, the leases whose samples others have done."""
        useless, self._useless = self._useless, []
        return useless

    def forget(self, is_useless: Callable[[Sample], bool]) -> None:
        """Take samples off all leases that nobody needs any more."""
        for held in list(self._leases.values()):
            for sample in [each for each in held.samples.values() if is_useless(each)]:
                self._remove(held, sample)

    def _take_from_others(self, kind: str, sample: Sample) -> None:
        for held in [*self._leases.values(), *self._lapsed.values()]:
            if held.kind == kind and sample.ordinal in held.samples:
                self._remove(held, sample)

    def _lapse(self, leases: list[GrantedLease]) -> list[GrantedLease]:
        for held in leases:
            self._lapsed[held.number] = self._leases.pop(held.number)
        return leases

    def _end_lapsed(self, worker: bytes, before: float = math.inf) -> None:
        """Forget a worker's leases that ran out: nothing of them can come any more."""
        for held in [each for each in self._lapsed.values() if each.worker == worker]:
            if held.number < before:
                del self._lapsed[held.number]

    def _remove(self, held: GrantedLease, sample: Sample) -> None:
        del held.samples[sample.ordinal]
        if not held.samples and self._lapsed.pop(held.number, None) is None:
            del self._leases[held.number]
            self._useless.append(held)

    def of(self, worker: bytes) -> list[GrantedLease]:
        """Return a worker's leases, oldest first."""
        return [held for held in self._leases.values() if held.worker == worker]

    def count(self, worker: bytes) -> int:
        """Return how many leases a worker has."""
        return sum(held.worker == worker for held in self._leases.values())

    def per_worker(self) -> Counter[bytes]:
        """Return how many leases each worker has."""
        return Counter(held.worker for held in self._leases.values())

    def lose(self, worker: bytes) -> list[GrantedLease]:
        """Remove and return all leases of a worker."""
        self._end_lapsed(worker)
        lost = self.of(worker)
        for held in lost:
            del self._leases[held.number]
        return lost

    def withdraw(self, number: int) -> GrantedLease | None:
        """Remove and return one lease."""
        return self._leases.pop(number, None)

    def expired(self, now: float) -> list[GrantedLease]:
        """Remove and return the leases whose deadline has passed; a late result still counts."""
        return self._lapse([held for held in self._leases.values() if held.deadline <= now])

    def untouched(self, worker: bytes, since: float) -> list[GrantedLease]:
        """Remove and return a worker's leases without a result since; a late one still counts."""
        return self._lapse([held for held in self.of(worker) if held.touched <= since])

    def clear(self) -> list[GrantedLease]:
        """Remove and return all leases."""
        every = list(self._leases.values())
        self._leases.clear()
        self._lapsed.clear()
        return every

    def next_deadline(self) -> float:
        """Return the earliest deadline, infinity if there is none."""
        return min((held.deadline for held in self._leases.values()), default=math.inf)
