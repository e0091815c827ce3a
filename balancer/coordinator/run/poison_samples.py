"""Detect the sample on which worker processes die or hang.

A worker without heartbeats may be dead, stopped or cut off, and nobody can know which; a lease that
expires may have been lost on its way to the worker or back. If each of these counted, a few network
faults at one time would give up a sample that nothing is wrong with. So there must be evidence: the
worker came back as a new process, so the old one died; or it is alive, and has reported for as long
as a lease lasts that it works on this sample; or nothing was received from it for that long.

A lease has several samples, and a worker may work on several at a time in threads, so it is not
certain which one it died of. The most likely is suspected and leased alone from then on, and
workers work on nothing beside it, so that the next crash identifies it with certainty.
"""

import math
from collections.abc import Iterable

import msgspec

from ...protocol.parts import WorkInProgress
from ..delivery.sample import Sample
from .lease_index import GrantedLease


class SuspectedSample(msgspec.Struct, frozen=True):
    """The sample that a worker worked on; `is_certain` if it was leased to be worked on alone."""

    sample: Sample
    is_certain: bool


class MissingWorker(msgspec.Struct, frozen=True):
    """A worker process without heartbeats, since when, and the sample that it worked on."""

    incarnation: int
    suspect: SuspectedSample
    since: float


class PoisonSampleDetector:
    """The missing workers, by name; a new process or the time shows that one of them died."""

    def __init__(self, dead_after_s: float) -> None:
        """`dead_after_s` is how long a worker may be missing before it counts as dead."""
        self.dead_after_s = dead_after_s
        self._missing: dict[str, MissingWorker] = {}

    def worker_missing(
        self, name: str, incarnation: int, suspect: SuspectedSample, since: float
    ) -> None:
        """Record that a worker is missing."""
        self._missing[name] = MissingWorker(incarnation, suspect, since)

    def worker_seen(self, name: str, incarnation: int) -> SuspectedSample | None:
        """Record that a worker process is alive; return the sample that its predecessor died on."""
        missing = self._missing.get(name)
        if missing is None or incarnation < missing.incarnation:
            return None
        del self._missing[name]
        return missing.suspect if incarnation > missing.incarnation else None

    def take_overdue(self, now: float) -> list[SuspectedSample]:
        """Return, once, the samples of workers that have been missing for too long."""
        overdue = [n for n, m in self._missing.items() if m.since + self.dead_after_s <= now]
        return [self._missing.pop(name).suspect for name in overdue]

    def next_deadline(self) -> float:
        """Return when the next worker has been missing for too long, infinity if none is."""
        since = min((missing.since for missing in self._missing.values()), default=math.inf)
        return since + self.dead_after_s


def reported_sample(leases: Iterable[GrantedLease], now: WorkInProgress) -> Sample | None:
    """Return the sample that a worker reports to work on, if it is on these leases."""
    number, ordinal = now
    found = (lease.samples.get(ordinal) for lease in leases if lease.number == number)
    return next(found, None)


def likely_sample(leases: list[GrantedLease], last: WorkInProgress) -> SuspectedSample | None:
    """Return the sample that a lost worker worked on: the one last reported, else its first."""
    for lease in leases:
        sample = reported_sample([lease], last)
        if sample is not None:
            return SuspectedSample(sample, lease.alone)
    for lease in leases:
        for sample in lease.samples.values():
            return SuspectedSample(sample, lease.alone)
    return None
