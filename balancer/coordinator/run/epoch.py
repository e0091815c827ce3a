"""One run: an epoch, from a position, on its way through the workers to the ranks.

A run joins the feed (what to probe, when to plan), the delivery (what to decode, what is ready) and
the leases (who does it). A loop without balancing has no feed: it offers its batches one by one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...planning.kernels.arrays import Int64
from ...protocol.job_spec import JobSpec
from ...protocol.messages import (
    DecodeDone,
    EpochPosition,
    Hole,
    Lease,
    ProbeDone,
    SampleFailed,
    SampleRef,
    StartRun,
    SubmitTask,
)
from ..delivery.sample import Sample
from ..delivery.step import ReadyBatch
from ..delivery.tracker import DeliveryTracker
from .leases import GrantedLease, LeaseTable
from .planning_feed import PlanningFeed, WindowPlanner
from .poison_samples import EMPTY_HAND, Hand, PoisonSampleDetector, SuspectedSample, likely, said

# Leases a worker has at a time: one to work on, one to go on with.
LEASES_PER_WORKER = 2
PROBE_LEASE = 16
DECODE_LEASE = 4
# Steps planned ahead of the front, so that nobody waits for planning.
STEPS_AHEAD = 3
# A lease without a result for so long is given to an idle worker, too.
HELP_S = 2.0
# A sample that so many workers died or hung on is not tried again; see poison_samples.py.
DEADLY_STRIKES = 3
# The last samples that were given up are remembered by name.
HOLES_TOLD = 4


def _unknown(_: bytes) -> Hand:
    return EMPTY_HAND


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What a run knows of a worker: its address and the slot that batches can be pinned to."""

    peer: bytes
    slot: int


class EpochRun:
    """The state of one run; every method returns what it decided and sends nothing."""

    def __init__(
        self,
        begin: StartRun,
        job: JobSpec,
        order: Int64,
        planner: WindowPlanner | None,
        lease: int = 0,
    ) -> None:
        """`lease` is the number of the last lease that was granted before."""
        self.number = begin.run
        self.begin = begin
        self.job = job
        self.delivery = DeliveryTracker(
            begin.run, job.buffer_bytes, job.on_error == "skip", job.label
        )
        self.delivery.passed(range(job.ranks), begin.start.step, begin.start.microbatch)
        self.leases = LeaseTable(job.lease_s, lease)
        self.suspicion = PoisonSampleDetector(job.lease_s)
        self.feed: PlanningFeed | None = None
        self.offered = 0
        self.holes = 0
        self.last_holes: deque[Hole] = deque(maxlen=HOLES_TOLD)
        if planner is not None:
            self.feed = PlanningFeed(
                begin.epoch, order, begin.start, planner, len(job.resources), self.delivery
            )

    def offer(self, offer: SubmitTask) -> None:
        """Take in one batch of a loop without balancing."""
        if offer.step < self.offered:
            return
        self.offered = offer.step + 1
        sample = Sample(offer.step, -1, offer.pickled, offer.pin, cost=())
        after = EpochPosition(0, 0, offer.step + 1, 0)
        self.delivery.add_step(offer.step, [[[sample]]], after)

    def advance(self) -> None:
        """Plan what can be planned; raises ValueError when a step cannot be."""
        if self.feed is not None:
            self.feed.advance(STEPS_AHEAD)

    def grant(self, worker: WorkerView, now: float, workers: int = 1) -> Lease | None:
        """Give one of `workers` its next lease, if there is work with credit that it can take."""
        if self.leases.count(worker.peer) >= LEASES_PER_WORKER:
            return None
        for kind in self._kinds():
            samples = self._work(kind, worker.slot, workers)
            if samples:
                held = self.leases.grant(worker.peer, kind, samples, now)
                refs = tuple(SampleRef(s.ordinal, s.index, s.pickled) for s in samples)
                return Lease(held.number, kind, self.begin.epoch, refs)
        return self._help(worker, now)

    def _help(self, worker: WorkerView, now: float) -> Lease | None:
        """Let an idle worker do what a slow one has not done; what comes first counts."""
        if self.feed is None or self.leases.count(worker.peer):
            return None
        slow = self.leases.slowest(now - HELP_S)
        if slow is None:
            return None
        held = self.leases.grant(worker.peer, slow.kind, slow.samples.values(), now, shared=slow)
        refs = tuple(SampleRef(s.ordinal, s.index, s.pickled) for s in held.samples.values())
        return Lease(held.number, held.kind, self.begin.epoch, refs)

    def is_past(self, begin: StartRun, ranks: tuple[int, ...]) -> bool:
        """Whether ranks begin this run at what it does not have, or has no more, for them."""
        first, here = self.begin.start, begin.start
        wanted = here.step, here.microbatch
        earliest = max((first.step, first.microbatch), self.delivery.needed(ranks))
        return begin.run == self.number and wanted < earliest

    def probed(self, worker: bytes, message: ProbeDone, now: float) -> None:
        """Take in the results of a probe lease."""
        for result in message.results:
            found = self._result(worker, message.lease, result.ordinal, now)
            if found and self.feed:
                found[1].strikes = 0  # what can be probed has killed nobody by probing
                self.feed.probed(found[1], result.key, result.cost, result.nbytes)

    def decoded(
        self, worker: bytes, message: DecodeDone, payload: object, nbytes: int, now: float
    ) -> None:
        """Take in one decoded sample; under a probe lease it brings its costs along."""
        found = self._result(worker, message.lease, message.ordinal, now)
        if not found:
            return
        kind, sample = found
        sample.key = sample.key or message.key
        if kind == "probe" and self.feed:
            self.feed.probed(sample, message.key, message.cost, nbytes)
        self.delivery.arrived(sample, message.header, payload, nbytes)

    def failed(self, worker: bytes, message: SampleFailed, now: float) -> None:
        """Take in a sample that cannot be used."""
        found = self._result(worker, message.lease, message.ordinal, now)
        if found:
            self._make_hole(found[1], message.key, message.reason, message.io)

    def _result(
        self, worker: bytes, lease: int, ordinal: int, now: float
    ) -> tuple[str, Sample] | None:
        """Take a sample off a lease; what the worker has passed over is lost, and goes back."""
        found = self.leases.result(worker, lease, ordinal, now)
        for held in self.leases.passed_over(worker, lease) if found else []:
            self._take_back(held)
        return found

    def lose_worker(self, worker: bytes) -> None:
        """Take back a worker's leases."""
        for held in self.leases.lose(worker):
            self._take_back(held)

    def miss_worker(
        self, worker: bytes, name: str, incarnation: int, hand: Hand, heard: float
    ) -> None:
        """Take back the leases of a worker last `heard` of then; why will be seen, perhaps."""
        suspect = likely(self.leases.of(worker), hand)
        if suspect is not None:
            self.suspicion.note(name, incarnation, suspect, heard)
        self.lose_worker(worker)

    def see_worker(self, name: str, incarnation: int) -> None:
        """Take in that a worker is there: if it is a new process, the one before has died."""
        suspect = self.suspicion.seen(name, incarnation)
        if suspect is not None:
            self._strike(suspect)

    def withdraw(self, lease: int) -> None:
        """Take back a lease that never reached its worker: nobody was working on it."""
        held = self.leases.withdraw(lease)
        if held is not None:
            self._take_back(held)

    def expire(self, now: float, hands: Callable[[bytes], Hand] = _unknown) -> list[GrantedLease]:
        """Take back leases that ran out; return them, to be revoked.

        `hands` tells what a worker says that it works on, as far as that is known to be so.
        """
        late = self.leases.expired(now)
        for worker in sorted({held.worker for held in late}):
            sample = said([held for held in late if held.worker == worker], hands(worker))
            if sample is not None:
                self._strike(SuspectedSample(sample, sure=True))
        for suspect in self.suspicion.overdue(now):
            self._strike(suspect)
        for held in late:
            self._take_back(held)
        return late

    def take_back_lost(self, worker: bytes, since: float) -> list[GrantedLease]:
        """Take back what a worker that does nothing has shown no result of since; return it."""
        lost = self.leases.untouched(worker, since)
        for held in lost:
            self._take_back(held)
        return lost

    def taken(self, rank: int, step: int, microbatch: int) -> None:
        """Take in that a rank has had a microbatch; leases that this makes useless end."""
        self.delivery.taken(rank, step, microbatch)
        self.end_useless_leases()

    def end_useless_leases(self) -> None:
        """Take samples off the leases that the ranks have had, or do not want any more."""
        if self.delivery.take_in_vain():
            self.leases.forget(self._is_had)

    def next_deadline(self) -> float:
        """Return when `expire` has something to do next."""
        return min(self.leases.next_deadline(), self.suspicion.next_deadline())

    def parcel(self, rank: int, step: int, microbatch: int, now: float) -> ReadyBatch | None:
        """Return a microbatch if it is ready."""
        return self.delivery.ready(rank, step, microbatch, now)

    def past_end(self, step: int) -> int | None:
        """Return the number of the first step that does not exist, if `step` is not before it."""
        if self.feed is None or not self.feed.ended or step < self.feed.step:
            return None
        return self.feed.step

    def waiting(self) -> str:
        """Say in a few words what the run waits for."""
        if self.feed is not None and not self.delivery.steps:
            return "costs of the next window"
        return "decoded samples" if self.delivery.steps else "batches to be offered"

    def _kinds(self) -> tuple[str, ...]:
        """Decode first, unless the ranks are about to run out of planned steps."""
        if self.feed is None:
            return ("decode",)
        if len(self.delivery.steps) < STEPS_AHEAD - 1:
            return "probe", "decode"
        return "decode", "probe"

    def _work(self, kind: str, slot: int, workers: int) -> list[Sample]:
        if kind == "probe":
            return self.feed.work(PROBE_LEASE, workers) if self.feed else []
        return self.delivery.work(slot, DECODE_LEASE if self.feed else 1)

    def _strike(self, suspect: SuspectedSample) -> None:
        """Give up a sample that workers died or hung on too often."""
        sample = suspect.sample
        if sample.strikes and not suspect.sure:
            return
        sample.strikes += 1
        if sample.strikes >= DEADLY_STRIKES:
            reason = f"{DEADLY_STRIKES} worker processes died or hung while they worked on it"
            self._make_hole(sample, sample.key or str(sample.index), reason, False)

    def _is_had(self, sample: Sample) -> bool:
        """Whether a sample is in a microbatch that its rank has had."""
        step = self.delivery.steps.get(sample.step)
        if step is None:
            return sample.step >= 0
        return step.ranks[sample.rank][sample.microbatch].taken

    def _take_back(self, held: GrantedLease) -> None:
        for sample in reversed(held.samples.values()):
            if self.leases.is_held(sample):
                continue
            if held.kind == "probe" and self.feed:
                self.feed.give_back(sample)
            else:
                self.delivery.give_back(sample)

    def _make_hole(self, sample: Sample, key: str, reason: str, io: bool) -> None:
        sample.key = sample.key or key
        self.holes += 1
        self.last_holes.append(Hole(sample.ordinal, sample.key, reason))
        if self.feed:
            self.feed.failed(sample, key)
        self.delivery.failed(sample, reason, fatal=io or self.job.on_error == "raise")
