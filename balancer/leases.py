"""Who works on what, until when.

A lease names samples and a deadline; every result renews its worker's leases. When it runs out, or
its worker is lost, what is left of it goes back. A sample that was first in line whenever its
worker died is suspected of killing workers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from .delivery import Sample


@dataclass(slots=True)
class Held:
    """A lease that has been granted: its open samples by ordinal, in the order of work."""

    number: int
    kind: str
    worker: bytes
    deadline: float
    samples: dict[int, Sample] = field(default_factory=dict)


class LeaseBook:
    """All leases, by number."""

    def __init__(self, lease_s: float = math.inf) -> None:
        """`lease_s` is how long a lease may go without a result, in seconds."""
        self.lease_s = lease_s
        self._leases: dict[int, Held] = {}
        self._next = 1

    def grant(self, worker: bytes, kind: str, samples: Iterable[Sample], now: float) -> Held:
        """Write down a new lease."""
        held = Held(self._next, kind, worker, now + self.lease_s, {s.ordinal: s for s in samples})
        self._leases[self._next] = held
        self._next += 1
        return held

    def result(
        self, worker: bytes, number: int, ordinal: int, now: float
    ) -> tuple[str, Sample] | None:
        """Take one sample off a lease; None for a lease that is not (or no longer) the worker's."""
        held = self._leases.get(number)
        if held is None or held.worker != worker:
            return None
        sample = held.samples.pop(ordinal, None)
        for each in self.of(worker):
            each.deadline = now + self.lease_s
        if not held.samples:
            del self._leases[number]
        return (held.kind, sample) if sample is not None else None

    def of(self, worker: bytes) -> list[Held]:
        """Return a worker's leases, oldest first."""
        return [held for held in self._leases.values() if held.worker == worker]

    def lose(self, worker: bytes) -> list[Held]:
        """Remove and return all leases of a worker."""
        lost = self.of(worker)
        for held in lost:
            del self._leases[held.number]
        return lost

    def withdraw(self, number: int) -> Held | None:
        """Remove and return one lease."""
        return self._leases.pop(number, None)

    def expired(self, now: float) -> list[Held]:
        """Remove and return the leases whose deadline has passed."""
        late = [held for held in self._leases.values() if held.deadline <= now]
        for held in late:
            del self._leases[held.number]
        return late

    def clear(self) -> list[Held]:
        """Remove and return all leases."""
        every = list(self._leases.values())
        self._leases.clear()
        return every

    def next_deadline(self) -> float:
        """Return the earliest deadline, infinity if there is none."""
        return min((held.deadline for held in self._leases.values()), default=math.inf)
