"""The planned part of a run: from planned steps to acknowledged microbatches.

Theory of operation. A step is added with its microbatches; its samples are decoded nearest first,
as far as the byte budget allows (`decoding.py`). A complete microbatch is ready to be sent. Once
sent it counts against the budget until it is acknowledged, and is forgotten then.

Where holes are allowed a step *waits for holes*: none of its microbatches is sent before all its
samples have been decoded once, because every weight in the step leaves the holes out. When a run
resumes inside a step, the ranks report the step's holes, and nothing waits.

Where the loop can take no microbatch without samples, those that consist of holes are given some as
soon as the step's holes are known. If there are too few, the whole step
becomes holes, and the ranks pass it over.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

from ...protocol.job_spec import JobSpec
from ...protocol.parts import KNOWN_BEFORE, EpochPosition
from .decoding import DecodeScheduler
from .sample import (
    NBYTES,
    NOWHERE,
    ORDINAL,
    ByteBudget,
    Payload,
    Sample,
    SampleFailure,
    WorkerPayloads,
)
from .step import (
    PendingMicrobatch,
    PendingStep,
    PlannedSteps,
    RankProgress,
    Ranks,
    ReadyBatch,
    fill_empty_microbatches,
    pack,
    plan_step,
)

# A step after all others.
BEYOND = 1 << 62
# A microbatch that was sent this long ago and is asked for again was lost on its way.
LOST_AFTER_S = 5.0


class DeliveryTracker:
    """The planned steps of a run, and what ranks and workers do to them.

    `budget` counts the bytes, `decoding` chooses what is decoded, `progress` is that of the ranks.
    """

    def __init__(self, run: int, job: JobSpec, kept: WorkerPayloads) -> None:
        """`kept` has the payloads that workers keep."""
        self.run = run
        self.job = job
        # By number; the same as `planned.by_number`.
        self.steps: dict[int, PendingStep] = {}
        self.budget = ByteBudget(job.buffer_bytes, kept)
        self.planned = PlannedSteps(self.steps)
        self.decoding = DecodeScheduler(self.planned, self.budget)
        self.progress = RankProgress()
        # Steps of which all holes are known beforehand, and these holes.
        self._known_steps: set[int] = set()
        self._known_holes: set[int] = set()
        # The last step that all ranks have taken.
        self.last_over = -1

    # --- planning

    def add_step(self, number: int, ranks: Ranks, after: EpochPosition) -> None:
        """Add a planned step; `after` is the position after it.

        Raises ValueError if one microbatch per rank cannot fit into the budget.
        """
        step = plan_step(number, ranks, after, waits_for_holes=self.job.on_error == "skip")
        for m in range(len(step.untaken_at)):
            need = sum(sum(map(NBYTES, rank[m].samples)) for rank in step.ranks)
            if need > self.budget.limit_bytes:
                raise ValueError(
                    f"a byte budget of {self.budget.limit_bytes} cannot hold one microbatch per "
                    f"rank: step {number} needs {need}; raise buffer_bytes to at least that"
                )
        for batch in itertools.chain(*step.ranks):
            self.planned.samples.update(
                zip(map(ORDINAL, batch.samples), batch.samples, strict=True)
            )
            self.decoding.queue_microbatch(batch.samples)
        self.steps[number] = step
        self._apply_known_holes(step)
        self._unblock(step)

    def learn_holes(self, steps: Iterable[int], holes: Iterable[int]) -> None:
        """Learn that these steps have no other holes than these ordinals.

        A rank that has taken some of a step knows all its holes. A run that resumes there gets
        them, and decodes nothing of the step but what is still to be delivered.
        """
        self._known_steps.update(steps)
        self._known_holes.update(holes)
        for step in list(self.steps.values()):
            self._apply_known_holes(step)
            self._unblock(step)

    def known_holes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the steps of which all holes are known, and the holes: see `learn_holes`."""
        settled = [step for step in self.steps.values() if not step.is_blocked]
        holes = self._known_holes.union(*[step.holes for step in settled])
        steps = self._known_steps.union(step.number for step in settled)
        return tuple(sorted(steps)), tuple(sorted(holes))

    def _apply_known_holes(self, step: PendingStep) -> None:
        """Turn known holes of a step into holes; if it has no others, it need not wait."""
        for sample in list(step.samples()) if self._known_holes else ():
            if sample.ordinal in self._known_holes:
                sample.key = sample.key or str(sample.index)  # of samples that were not measured
                self.fail(sample, SampleFailure(KNOWN_BEFORE))
        if step.number in self._known_steps:
            step.waits_for_holes = False

    # --- results of decoding

    def store(self, decoded: Sequence[tuple[Sample, Payload]]) -> None:
        """Store the payloads of different samples; those that are not needed are ignored."""
        self.budget.release_reserved([sample for sample, _ in decoded])
        needed = [each for each in decoded if self._is_needed(each[0])]
        self.budget.hold(needed)
        samples = [sample for sample, _ in needed]
        self.planned.change_missing(samples, -1)
        self._settle(samples)
        self.decoding.evict()

    def _is_needed(self, sample: Sample) -> bool:
        # What has a place and is not planned was forgotten.
        known = sample.ordinal in self.planned.samples or sample.place == NOWHERE
        return known and sample.is_missing

    def fail(self, sample: Sample, failure: SampleFailure) -> None:
        """Turn a sample into a hole."""
        self.budget.release_reserved((sample,))
        if not self._is_needed(sample):
            return
        sample.failure = failure
        if sample.step in self.steps:
            self.steps[sample.step].holes.add(sample.ordinal)
        self.planned.change_missing((sample,), -1)
        self._settle((sample,))

    def _settle(self, samples: Iterable[Sample]) -> None:
        """Count samples as decoded once, or as holes; the last one may unblock its step."""
        for step in self.planned.settle(samples):
            if step.waits_for_holes:
                self._unblock(step)

    def _unblock(self, step: PendingStep) -> None:
        """Settle what a step's microbatches are, once its holes are known, and what ranks need."""
        if not step.is_blocked and not step.is_settled:
            step.is_settled = True
            if not self.job.plan.empty_microbatches:
                self._fill_empty(step)
            self.planned.note_step(step)
        self._catch_up(step, self.progress)

    def _fill_empty(self, step: PendingStep) -> None:
        """Give samples to microbatches without any; where there are not enough, leave all out.

        Or none, where ranks have spare samples.
        """
        moved = fill_empty_microbatches(step)
        for sample in moved or ():
            self.decoding.move(sample)
        if moved is not None or self.job.plan.spares:
            return
        reason = (
            f"usable, but step {step.number} has fewer such samples than microbatches, and "
            "collate_fn cannot make a batch of no samples"
        )
        for sample in [each for each in step.samples() if each.failure is None]:
            if not sample.is_missing:
                self.budget.drop((sample,))
                self.planned.change_missing((sample,), 1)
            self.fail(sample, SampleFailure(reason))

    # --- sending

    def ready(
        self, rank: int, number: int, microbatch: int, now: float = math.inf, peer: bytes = b""
    ) -> ReadyBatch | None:
        """Return a microbatch that a rank's process asks for, if it is complete and may be sent."""
        batch = self.planned.find(rank, number, microbatch)
        is_due = batch is not None and not batch.taken and not self.steps[number].is_blocked
        if batch is None or not is_due or not self._is_complete(batch, now, peer):
            return None
        return pack(self.steps[number], rank, microbatch, self.run, self.job)

    def mark_sent(
        self,
        rank: int,
        number: int,
        microbatch: int,
        now: float = 0.0,
        peer: bytes = b"",
        waiting: Collection[bytes] = (),
    ) -> None:
        """Record that a microbatch was sent to a process.

        Its payloads count as sent once all were sent it that wait for it: until then they are
        needed here.
        """
        batch = self.planned.find(rank, number, microbatch)
        if batch is None:
            return
        batch.sent_at[peer] = now
        if all(each in batch.sent_at for each in waiting):
            self.budget.mark_sent(batch.samples)
        self.decoding.evict()

    def lose_sent(self, rank: int, number: int, microbatch: int, peer: bytes = b"") -> None:
        """Decode a microbatch again that a process cannot have: a payload of it was gone.

        What came inline with it the process has dropped, too: all of it is to be sent there again.
        """
        batch = self.planned.find(rank, number, microbatch)
        if batch is None or batch.taken:
            return
        batch.sent_at.pop(peer, None)
        for sample in batch.samples:
            if sample.is_sent or (sample.payload is not None and sample.payload.serial):
                self.budget.drop((sample,))
                self.budget.forget_sent((sample,))
                self.planned.change_missing((sample,), 1)
                self.decoding.queue(sample)

    def _is_complete(self, batch: PendingMicrobatch, now: float, peer: bytes) -> bool:
        """Return whether a microbatch that is asked for can be sent.

        What was sent inline before must be decoded again, once it had time to arrive: a busy rank
        asks again for a microbatch that is on its way.
        """
        is_late = now >= batch.sent_at.get(peer, -math.inf) + LOST_AFTER_S
        if is_late:
            batch.sent_at.pop(peer, None)
        dropped = [each for each in batch.samples if each.is_sent and each.payload is None]
        if dropped and is_late:
            self.budget.forget_sent(dropped)
            batch.missing += len(dropped)
            for sample in dropped:
                self.decoding.queue(sample)
        return not dropped and not batch.missing

    # --- progress of ranks

    def acknowledge(self, rank: int, number: int, microbatch: int) -> None:
        """Forget a microbatch that a rank has taken, and all before it."""
        is_planned = self.planned.find(rank, number, microbatch) is not None
        # A run that was started again may not have planned yet what its ranks have taken.
        if is_planned or number > max(self.steps, default=-1):
            self.skip_to((rank,), number, microbatch + 1)

    def skip_to(self, ranks: Sequence[int], number: int, microbatch: int) -> None:
        """Forget what is before a microbatch: these ranks do not need it."""
        for rank in ranks:
            self.progress.move_on(rank, (number, microbatch))
        for step in [step for step in self.steps.values() if step.number <= number]:
            self._catch_up(step, ranks)

    def _catch_up(self, step: PendingStep, ranks: Iterable[int]) -> None:
        """Forget the microbatches of a step that ranks do not need, and a step that all have.

        While a step is blocked even a microbatch that was taken is kept: its samples may be holes.
        """
        for rank in () if step.is_blocked else ranks:
            if 0 <= rank < len(step.ranks):
                self._take_before(step, rank)
        while step.front < len(step.untaken_at) and not step.untaken_at[step.front]:
            step.front += 1
        is_taken = step.front == len(step.untaken_at)
        if is_taken and self.steps.pop(step.number, None) is not None:
            # One that joins late may need the step again: not for its holes, at least.
            self.last_over = max(self.last_over, step.number)
            self._known_steps.add(step.number)
            self._known_holes |= step.holes

    def _take_before(self, step: PendingStep, rank: int) -> None:
        """Count as taken what a rank does not need of a step."""
        batches = step.ranks[rank]
        number, microbatch = self.progress[rank]
        if number < step.number:
            return
        # A rank may have said anything of a step that was not planned yet.
        end = min(microbatch, len(batches)) if number == step.number else len(batches)
        for batch in batches[step.taken[rank] : end]:
            if step.unsettled:
                self._settle(batch.samples)
            batch.taken = True
            self.budget.release_reserved(batch.samples)
            self.budget.forget_sent(batch.samples)
            self.budget.drop(batch.samples)
            for sample in batch.samples:
                self.planned.samples.pop(sample.ordinal, None)
        for microbatch in range(step.taken[rank], end):
            step.untaken_at[microbatch] -= 1
        step.taken[rank] = max(step.taken[rank], end)
