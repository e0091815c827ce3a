"""Samples that are given up: those that fail, and those on which worker processes die or hang.

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
from collections import deque
from collections.abc import Iterable

import msgspec

from ...protocol.messages import Hole
from ...protocol.parts import WorkInProgress
from ..delivery.sample import Sample, SampleFailure
from ..delivery.tracker import DeliveryTracker
from .leases import GrantedLease
from .planning_feed import PlanningFeed

# A sample on which this many workers died or hung is given up.
MAX_CRASHES = 3
# The last samples that were given up are remembered by name.
HOLES_REMEMBERED = 4


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


class FailedSamples:
    """Turns samples into holes, and counts them."""

    def __init__(self, feed: PlanningFeed, delivery: DeliveryTracker, on_error: str) -> None:
        """With `on_error` "raise" a failed sample ends the run when its microbatch is due."""
        self.feed = feed
        self.delivery = delivery
        self.on_error = on_error
        self.count = 0
        self.last: deque[Hole] = deque(maxlen=HOLES_REMEMBERED)

    def give_up(self, sample: Sample, key: str, reason: str, io: bool, source: str = "") -> None:
        """Turn a sample into a hole; an `io` error ends the run whatever `on_error` is."""
        sample.key = sample.key or key
        self.count += 1
        self.last.append(Hole(sample.ordinal, sample.key, reason, source))
        self.feed.store_failure(sample, key)
        self.delivery.fail(sample, SampleFailure(reason, source, io or self.on_error == "raise"))

    def count_crash(self, suspect: SuspectedSample) -> None:
        """Count a worker that died or hung on a sample; give it up when there were too many.

        A guess counts once, to have the sample leased alone; from then on only certainty counts.
        """
        sample = suspect.sample
        if sample.crash_count and not suspect.is_certain:
            return
        sample.crash_count += 1
        if sample.crash_count >= MAX_CRASHES:
            reason = f"{MAX_CRASHES} worker processes died or hung while they worked on it"
            self.give_up(sample, sample.key or str(sample.index), reason, io=False)
