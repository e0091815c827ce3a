"""Return lost leases: their samples go back to where they are leased from again.

A lease is lost when its worker leaves or goes missing, when it expires, when it could not be sent,
when its worker is idle instead of working on it, or when its worker goes on to a later lease. Each
case has a method here, and all end in `_return`.
"""

from collections.abc import Callable, Iterable

from ...protocol.parts import IDLE, WorkInProgress
from ..delivery.sample import Sample
from ..delivery.tracker import DeliveryTracker
from .failed_samples import (
    FailedSamples,
    PoisonSampleDetector,
    SuspectedSample,
    likely_sample,
    reported_sample,
)
from .leases import GrantedLease, LeaseTable
from .planning_feed import PlanningFeed


def _all_idle(_: bytes) -> WorkInProgress:
    return IDLE


class LostLeases:
    """Returns the samples of lost leases, and suspects one of them where a worker died or hung."""

    def __init__(
        self,
        leases: LeaseTable,
        feed: PlanningFeed,
        delivery: DeliveryTracker,
        failed: FailedSamples,
    ) -> None:
        self.leases = leases
        self.feed = feed
        self.delivery = delivery
        self.failed = failed
        self.detector = PoisonSampleDetector(leases.lease_s)

    def return_worker(self, worker: bytes) -> None:
        """Return the leases of a worker that has left."""
        self._return(self.leases.take_of_worker(worker))

    def return_missing_worker(
        self, worker: bytes, name: str, incarnation: int, last: WorkInProgress, heard_at: float
    ) -> None:
        """Return the leases of a worker that is missing; it may have died on the sample `last`.

        Whether it died shows when a new process has its name, or when it stays away.
        """
        suspect = likely_sample(self.leases.of_worker(worker), last)
        if suspect is not None:
            self.detector.worker_missing(name, incarnation, suspect, heard_at)
        self.return_worker(worker)

    def see_worker(self, name: str, incarnation: int) -> None:
        """Record that a worker process is alive: if it is a new one, the one before has died."""
        suspect = self.detector.worker_seen(name, incarnation)
        if suspect is not None:
            self.failed.count_crash(suspect)

    def return_undelivered(self, number: int) -> None:
        """Return a lease that could not be sent: nobody was working on it."""
        lease = self.leases.take(number)
        self._return([lease] if lease is not None else [])

    def return_expired(
        self, now: float, in_progress: Callable[[bytes], WorkInProgress] = _all_idle
    ) -> list[GrantedLease]:
        """Return expired leases to be worked on by others; the caller revokes them.

        `in_progress` tells what a worker works on, IDLE if that is not known. A worker that is
        alive and still works on a sample of an expired lease hangs on it.
        """
        expired = self.leases.take_expired(now)
        for worker in sorted({lease.worker for lease in expired}):
            leases = [lease for lease in expired if lease.worker == worker]
            sample = reported_sample(leases, in_progress(worker))
            if sample is not None:
                self.failed.count_crash(SuspectedSample(sample, is_certain=True))
        for suspect in self.detector.take_overdue(now):
            self.failed.count_crash(suspect)
        self._return(expired)
        return expired

    def return_idle(self, worker: bytes, since: float) -> list[GrantedLease]:
        """Return the leases of an idle worker without a result since a time; the caller revokes."""
        lost = self.leases.take_without_result(worker, since)
        self._return(lost)
        return lost

    def return_skipped(self, worker: bytes, number: int) -> None:
        """Return a worker's leases before the one of which it has shown a result."""
        self._return(self.leases.take_skipped(worker, number))

    def next_deadline(self) -> float:
        """Return when a lease expires, or a missing worker counts as dead."""
        return min(self.leases.next_deadline(), self.detector.next_deadline())

    def requeue(self, kind: str, sample: Sample) -> None:
        """Queue a sample again that no worker has on a lease."""
        if kind == "probe":
            self.feed.requeue(sample)
        else:
            self.delivery.decoding.requeue(sample)

    def _return(self, leases: Iterable[GrantedLease]) -> None:
        """Queue what is left of leases again, in its former order."""
        for lease in leases:
            for sample in reversed(lease.samples.values()):
                if self.leases.is_leased(sample):
                    continue  # another worker has it as well
                self.requeue(lease.kind, sample)
