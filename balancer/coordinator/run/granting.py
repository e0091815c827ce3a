"""Grants leases, returns those that are lost, and gives up samples that fail or end workers.

A lease is lost when its worker leaves or goes missing, when it expires, when it could not be sent,
when its worker is idle instead of working on it, or when its worker goes on to a later lease. In
each case `LeaseTable` takes it out, and `give_back` queues what is left of it again.

A worker without heartbeats may be dead, stopped or cut off, and nobody can know which; a lease that
expires may have been lost on its way to the worker or back. If each of these counted, a few network
faults at one time would give up a sample that nothing is wrong with. So there must be evidence: the
worker came back as a new process, so the old one died; or it is alive, and has reported for as long
as a lease lasts that it works on this sample; or nothing was received from it for that long.

A lease has several samples, and a worker may work on several at a time in threads, so it is not
certain which one it died of. The most likely is suspected and leased alone from then on, and
workers work on nothing beside it and have nothing to go on with, so that the next crash identifies
it with certainty: a worker that dies of the next sample may take the last one's result with it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ...planning.kernels.arrays import Int64
from ...protocol.job_spec import JobSpec
from ...protocol.messages import StartRun
from ...protocol.parts import ELSEWHERE, Hole, SampleRef, WorkInProgress
from ...protocol.payload_messages import Lease
from ..delivery.sample import Sample, SampleFailure, WorkerPayloads
from ..delivery.tracker import DeliveryTracker
from .known_costs import KnownCosts
from .leases import GrantedLease, LeaseTable, wanted
from .planning_feed import PlanningFeed, WindowPlanner

# Samples in a lease, where it is not known how long they take.
PROBE_SAMPLES = 16
DECODE_SAMPLES = 4
# Where they are quick, messages cost more than they do: so many more, for about this time.
MOST_SAMPLES = 128
LEASE_MS = 10.0
# Steps planned ahead of the front, so that nobody waits for planning.
STEPS_AHEAD = 3
# A lease without a result for this long is granted to an idle worker, too.
HELP_AFTER_S = 2.0


def lease_samples(least: int, each_ms: float | None) -> int:
    """Return the most samples of a lease, by the time that a worker takes for one.

    >>> [lease_samples(4, each_ms) for each_ms in (None, 16.0, 1.0, 0.05)]
    [4, 4, 10, 128]
    """
    if each_ms is None:
        return least
    # Far below what may be infinitely many.
    return max(least, int(min(LEASE_MS / max(each_ms, 1e-3), MOST_SAMPLES)))


# A sample on which this many workers died or hung is given up.
MAX_CRASHES = 3
# The last samples that were given up are remembered by name.
HOLES_REMEMBERED = 4


class SuspectedSample(msgspec.Struct, frozen=True):
    """The sample that a worker worked on; `is_certain` if it was leased to be worked on alone."""

    sample: Sample
    is_certain: bool


class MissingWorker(msgspec.Struct, frozen=True):
    """A worker process without heartbeats, since when, and the sample that it worked on.

    A new process of its name, or the time, shows that it has died.
    """

    incarnation: int
    suspect: SuspectedSample
    since: float


def reported_sample(leases: Iterable[GrantedLease], now: WorkInProgress) -> Sample | None:
    """Return the sample that a worker reports to work on, if it is on these leases."""
    number, ordinal = now
    found = (lease.samples.get(ordinal) for lease in leases if lease.number == number)
    return next(found, None)


class SampleWork:
    """The samples of one run at work: grants leases, takes lost ones back, gives samples up.

    `leases` are the workers', `feed` is what is to be probed, `delivery` what is to be decoded.
    """

    def __init__(
        self,
        begin: StartRun,
        job: JobSpec,
        order: Int64,
        planner: WindowPlanner,
        known: KnownCosts,
        note_leases: Callable[[bytes], None],
        kept: WorkerPayloads,
    ) -> None:
        """`known` are the costs that need not be measured; those that are measured are added.

        `note_leases` is told each worker the number of whose leases has changed; `kept` has the
        payloads that they keep.
        """
        self.number = begin.run
        self.begin = begin
        self.job = job
        self.delivery = DeliveryTracker(begin.run, job, kept)
        self.delivery.skip_to(range(job.plan.ranks), begin.start.step, begin.start.microbatch)
        self.feed = PlanningFeed(begin.epoch, order, begin.start, planner, known, self.delivery)
        self.leases = LeaseTable(job.lease_s, note_change=note_leases)
        # Samples that were given up.
        self.holes = 0
        self.last_holes: deque[Hole] = deque(maxlen=HOLES_REMEMBERED)
        # By their names. One that is missing for as long as a lease lasts counts as dead.
        self._missing: dict[str, MissingWorker] = {}

    # --- granting

    def grant(
        self, worker: bytes, now: float, workers: int, ms_each: Mapping[str, float], rank: int
    ) -> Lease | None:
        """Grant a worker its next lease, if there is work for it within the byte budget.

        `workers` are those that share the samples to probe; `ms_each` is how long this one takes
        for a sample, by kind of lease, where that is known. Of what is to be decoded next, the
        samples of `rank` come first.
        """
        # Decode first, unless the ranks soon run out of steps.
        is_short = len(self.delivery.steps) < STEPS_AHEAD - 1
        for kind in ("probe", "decode") if is_short else ("decode", "probe"):
            each_ms = ms_each.get(kind)
            if kind == "probe":
                samples = self._to_probe(workers, each_ms)
            else:
                most = lease_samples(DECODE_SAMPLES, each_ms)
                samples = self.delivery.decoding.next_samples(most, rank, most > DECODE_SAMPLES)
            if samples:
                return self._message(self.leases.grant(worker, kind, samples, now))
        return None

    def has_work(self) -> bool:
        """Return whether there is anything to decode, or to probe; `grant` finds none otherwise."""
        return self.delivery.decoding.nearest(0) is not None or self.feed.has_to_probe(MOST_SAMPLES)

    def grant_shared(self, worker: bytes, now: float) -> Lease | None:
        """Grant an idle worker the samples of a slow one as well; the first result counts."""
        slow = self.leases.slowest(now - HELP_AFTER_S)
        if slow is None:
            return None
        return self._message(self.leases.grant(worker, slow.kind, wanted(slow), now, shared=slow))

    def _to_probe(self, workers: int, each_ms: float | None) -> list[Sample]:
        # Asked first: after most messages there is nothing to probe.
        if not self.feed.has_to_probe(MOST_SAMPLES):
            return []
        most = lease_samples(PROBE_SAMPLES, each_ms)
        if most > PROBE_SAMPLES:
            # Shares of what is quick would end in leases of one sample each, and so would windows.
            self.feed.open_ahead(most)
            workers = 1
        return self.feed.samples.next_samples(most, workers)

    def _message(self, lease: GrantedLease) -> Lease:
        refs = tuple([SampleRef(s.ordinal, s.index) for s in lease.samples.values()])
        return Lease(lease.number, lease.kind, self.begin.epoch, refs, alone=lease.alone)

    # --- giving up

    def give_up(self, sample: Sample, key: str, reason: str, io: bool, source: str = "") -> None:
        """Turn a sample into a hole; an `io` error ends the run whatever `on_error` is."""
        sample.key = sample.key or key
        self.holes += 1
        self.last_holes.append(Hole(sample.ordinal, sample.key, reason, source))
        self.feed.store_failure(sample, key)
        ends_run = io or (self.job.on_error == "raise" and sample.ordinal not in self.begin.holes)
        self.delivery.fail(sample, SampleFailure(reason, source, ends_run))

    def count_crash(self, suspect: SuspectedSample) -> None:
        """Count a worker that died or hung on a sample; give it up when there were too many.

        A guess counts once, to have the sample leased alone; from then on only certainty counts.
        """
        sample = suspect.sample
        # Several may have died of it before one of them was known to be dead.
        if sample.failure is not None or (sample.crash_count and not suspect.is_certain):
            return
        sample.crash_count += 1
        if sample.crash_count >= MAX_CRASHES:
            reason = f"{MAX_CRASHES} worker processes died or hung while they worked on it"
            self.give_up(sample, sample.key or str(sample.index), reason, io=False)

    # --- lost leases

    def suspect_worker(
        self, worker: bytes, name: str, incarnation: int, last: WorkInProgress, heard_at: float
    ) -> None:
        """Note a worker that is missing: it may have died on the sample that it reported `last`.

        Whether it died shows when a new process has its name, or when it stays away.
        """
        leases = [] if last == ELSEWHERE else self.leases.of_worker(worker)
        reported = [each for each in leases if reported_sample([each], last) is not None]
        for lease in (reported or leases)[:1]:
            sample = reported_sample([lease], last) or next(iter(lease.samples.values()))
            suspect = SuspectedSample(sample, lease.alone)
            self._missing[name] = MissingWorker(incarnation, suspect, heard_at)

    def see_worker(self, name: str, incarnation: int) -> None:
        """Record that a worker process is alive: if it is a new one, the one before has died."""
        missing = self._missing.get(name)
        if missing is not None and incarnation >= missing.incarnation:
            del self._missing[name]
            if incarnation > missing.incarnation:
                self.count_crash(missing.suspect)

    def return_expired(
        self, now: float, in_progress: Callable[[bytes], WorkInProgress]
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
                self.count_crash(SuspectedSample(sample, is_certain=True))
        for name, missing in list(self._missing.items()):
            if missing.since + self.leases.lease_s <= now:
                del self._missing[name]
                self.count_crash(missing.suspect)
        self.give_back(expired)
        return expired

    def requeue(self, kind: str, sample: Sample) -> None:
        """Queue a sample again that no worker has on a lease."""
        if kind == "probe":
            self.feed.samples.requeue(sample)
        else:
            self.delivery.decoding.requeue(sample)

    def give_back(self, leases: Iterable[GrantedLease]) -> None:
        """Queue what is left of leases again, in its former order."""
        for lease in leases:
            for sample in reversed(lease.samples.values()):
                # Another worker may have it, on a lease that shares it.
                others = self.leases if lease.shared else ()
                if not any(sample.ordinal in other.samples for other in others):
                    self.requeue(lease.kind, sample)
