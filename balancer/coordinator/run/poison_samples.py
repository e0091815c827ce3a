"""Which sample to suspect when a worker process dies or hangs.

A worker that is not heard of may be dead, stopped or cut off, and nobody can know which; a lease
that runs out may have been lost on its way, there or back. If each of these counted, a few faults
of the network at one time would give up a sample that nothing is wrong with. So there must be
evidence: its worker came back as a new process, so the old one died; or its worker lives, and has
said for as long as a lease lasts that it works on this sample; or nothing at all was heard of its
worker for so long.

Of a lease of several samples it is not known for sure which was in hand. The likeliest is
suspected, and from then on leased alone; what happens to who has it alone counts further.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..delivery.sample import Sample
from .leases import GrantedLease

# (lease, ordinal) of what a worker says it works on.
Hand = tuple[int, int]
EMPTY_HAND: Hand = (0, -1)
UNTOLD: Hand = (-1, -1)


@dataclass(frozen=True, slots=True)
class SuspectedSample:
    """What a worker had in hand; `sure` if there was nothing else that it could be."""

    sample: Sample
    sure: bool


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker process that is not heard of, since when, and what it had in hand."""

    incarnation: int
    suspect: SuspectedSample
    since: float


class PoisonSampleDetector:
    """The workers that are missing, by name."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s` is how long a worker may be missing before it is taken for dead."""
        self.patience_s = patience_s
        self._missing: dict[str, MissingWorker] = {}

    def note(self, name: str, incarnation: int, suspect: SuspectedSample, since: float) -> None:
        """Write down that a worker is missing."""
        self._missing[name] = MissingWorker(incarnation, suspect, since)

    def seen(self, name: str, incarnation: int) -> SuspectedSample | None:
        """Take in that a worker is there; return what its former process died on."""
        missing = self._missing.get(name)
        if missing is None or incarnation < missing.incarnation:
            return None
        del self._missing[name]
        return missing.suspect if incarnation > missing.incarnation else None

    def overdue(self, now: float) -> list[SuspectedSample]:
        """Return, once, what workers had in hand that have been missing for too long."""
        late = [n for n, m in self._missing.items() if m.since + self.patience_s <= now]
        return [self._missing.pop(name).suspect for name in late]

    def next_deadline(self) -> float:
        """Return when the next worker has been missing for too long, infinity if none will be."""
        since = min((missing.since for missing in self._missing.values()), default=math.inf)
        return since + self.patience_s


def said(leases: Iterable[GrantedLease], hand: Hand) -> Sample | None:
    """Return the sample that a worker says it has in hand, if it is in these leases."""
    number, ordinal = hand
    found = (held.samples.get(ordinal) for held in leases if held.number == number)
    return next(found, None)


def likely(leases: list[GrantedLease], hand: Hand) -> SuspectedSample | None:
    """Return what a worker had in hand: what it said last, else its first in line."""
    for held in leases:
        sample = said([held], hand)
        if sample is not None:
            return SuspectedSample(sample, len(held.samples) == 1)
    for held in leases:
        for sample in held.samples.values():
            return SuspectedSample(sample, len(held.samples) == 1)
    return None
