"""What has been planned and not yet delivered: samples, their payloads, and the byte budget.

Theory of operation. A step enters with its microbatches; its samples are decoded nearest first
while the bytes held and under way stay within the budget. Decoded payloads are a cache: when the
budget is exceeded the latest are dropped and decoded again later, identically. The front (the
earliest microbatch that some rank has not taken) may always be decoded, whatever the budget says,
so that the line cannot jam. What was sent to a rank is in its memory, and counts; the copy here is
the first to go, and is made again if the rank asks again. Where holes are allowed a step is
*gated*: none of its microbatches leaves before all its samples have been decoded once, because
every weight in the step counts the holes out.
"""

import heapq
import math
from collections.abc import Iterable, Sequence

from ...protocol.messages import EpochPosition
from .byte_budget import ByteBudget
from .decode_queue import DecodeQueue
from .sample import Sample, Slot
from .step import (
    PendingMicrobatch,
    PendingStep,
    Ranks,
    ReadyBatch,
    pack,
    plan_step,
    refuse_small_budget,
)

# A step after all others.
BEYOND = 1 << 62
# What was sent so long ago and is asked for again was lost on its way.
LOST_S = 5.0


class DeliveryTracker:
    """The planned part of a run, from planned steps to acknowledged microbatches."""

    def __init__(self, run: int, budget_bytes: int, gated: bool, label: int = -1) -> None:
        """`label` is the position of the resource that counts label tokens, -1 where none does."""
        self.run = run
        self.gated = gated
        self.label = label
        # Steps of which all holes are known beforehand, and these.
        self._known: set[int] = set()
        self._known_holes: set[int] = set()
        # The first (step, microbatch) that each rank may still need.
        self._next: dict[int, tuple[int, int]] = {}
        self.steps: dict[int, PendingStep] = {}
        self._samples: dict[int, Sample] = {}
        # Whether something that is being decoded was forgotten.
        self._in_vain = False
        self.bytes = ByteBudget(budget_bytes)
        self._queue = DecodeQueue(self._is_wanted)

    @property
    def held_bytes(self) -> int:
        """Bytes of decoded payload that are held."""
        return self.bytes.held_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are expected of what is being decoded."""
        return self.bytes.reserved_bytes

    @property
    def front(self) -> tuple[int, int]:
        """The earliest (step, microbatch) that some rank has not taken, or (-1, -1)."""
        if not self.steps:
            return -1, -1
        first = self.steps[min(self.steps)]
        return first.number, first.front

    def add_step(self, number: int, ranks: Ranks, after: EpochPosition) -> None:
        """Take in a planned step.

        Raises ValueError if one microbatch per rank cannot fit into the budget.
        """
        step = plan_step(number, ranks, after, self.gated)
        refuse_small_budget(step, self.bytes.most)
        step.untaken = sum(map(len, step.ranks))
        for sample in step.samples():
            step.unsettled += not sample.settled
            self._samples[sample.ordinal] = sample
            self._want(sample)
        self.steps[number] = step
        self._make_known(step)
        self._catch_up(step)

    def know(self, steps: Iterable[int], holes: Iterable[int]) -> None:
        """Learn that these steps, begun before, have no other holes than these ordinals.

        A rank that has had some of a step knows all its holes; a run that begins there is told, and
        nothing of that step is decoded but what is still to be handed out.
        """
        self._known.update(steps)
        self._known_holes.update(holes)
        for step in list(self.steps.values()):
            self._make_known(step)
            self._catch_up(step)

    def known(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the steps of which all holes are known, and these, for a run that starts again."""
        open_steps = [step for step in self.steps.values() if not step.shut]
        holes = self._known_holes.union(*[step.holes for step in open_steps])
        return tuple(sorted(self._known.union(s.number for s in open_steps))), tuple(sorted(holes))

    def needed(self, ranks: Sequence[int]) -> tuple[int, int]:
        """Return the first (step, microbatch) that one of these ranks may still need."""
        return min(self._next.get(rank, (0, 0)) for rank in ranks)

    def work(self, slot: Slot, most: int) -> list[Sample]:
        """Return up to `most` samples of one microbatch for a worker to decode, nearest first.

        One that is suspected of killing workers comes alone.
        """
        chosen: list[Sample] = []
        while len(chosen) < most:
            heap = self._queue.nearest(slot, self.front)
            if heap is None:
                break
            sample = self._samples[heap[0][3]]
            if chosen and (sample.strikes or sample.where != chosen[0].where):
                break
            if not self._has_credit(sample):
                break
            heapq.heappop(heap)
            self.bytes.reserve(sample)
            chosen.append(sample)
            if sample.strikes:
                break
        return chosen

    def give_back(self, sample: Sample) -> None:
        """Take back a sample whose lease was lost."""
        if sample.ordinal in self._samples and sample.reserved:
            self.bytes.release(sample)
            self._want(sample)

    def arrived(self, sample: Sample, header: bytes, payload: object, nbytes: int) -> None:
        """Take in a decoded payload; a sample that is not wanted (any more) is ignored."""
        self.bytes.release(sample)
        if not sample.is_open or (sample.step >= 0 and sample.ordinal not in self._samples):
            return
        self.bytes.keep(sample, header, payload, nbytes)
        self._settle(sample)
        self._change_missing(sample, -1)
        self._evict()

    def failed(self, sample: Sample, reason: str, fatal: bool = False) -> None:
        """Turn a sample into a hole."""
        self.bytes.release(sample)
        if not sample.is_open:
            return
        sample.reason, sample.fatal = reason, fatal
        if sample.step in self.steps:
            self.steps[sample.step].holes.add(sample.ordinal)
        self._settle(sample)
        self._change_missing(sample, -1)

    def refuse(self, sample: Sample, reason: str) -> None:
        """Turn a sample that is not planned yet into a hole, even if it has been decoded."""
        self.bytes.drop(sample)
        self.failed(sample, reason)

    def discard_unplanned(self, sample: Sample) -> None:
        """Drop the payload of a sample that no step took (it was decoded to be measured)."""
        if sample.step < 0:
            self.bytes.drop(sample)

    def ready(
        self, rank: int, number: int, microbatch: int, now: float = math.inf
    ) -> ReadyBatch | None:
        """Return a microbatch if it is complete and may leave; `now` also tells what is lost."""
        step = self.steps.get(number)
        batch = step.find(rank, microbatch) if step is not None else None
        if step is None or batch is None or batch.taken or step.shut:
            return None
        if not self._is_here(batch, now):
            return None
        return pack(step, rank, microbatch, self.run, self.label)

    def sent(self, rank: int, number: int, microbatch: int, now: float = 0.0) -> None:
        """Note that a microbatch is on its way to its rank, or there."""
        step = self.steps.get(number)
        batch = step.find(rank, microbatch) if step is not None else None
        if batch is None:
            return
        batch.sent = now
        for sample in batch.samples:
            self.bytes.lend(sample)
        self._evict()

    def taken(self, rank: int, number: int, microbatch: int) -> None:
        """Forget an acknowledged microbatch and all before it; saying it twice changes nothing."""
        step = self.steps.get(number)
        planned = step is not None and step.find(rank, microbatch) is not None
        # A run that was started again may not have planned yet what its ranks have had.
        if planned or number > max(self.steps, default=-1):
            self.passed((rank,), number, microbatch + 1)

    def passed(self, ranks: Sequence[int], number: int, microbatch: int) -> None:
        """Learn that these ranks need nothing that is before a microbatch."""
        for rank in ranks:
            self._move_on(rank, number, microbatch)
        for step in list(self.steps.values()):
            self._catch_up(step, ranks)

    def take_in_vain(self) -> bool:
        """Return, once, whether something is being decoded that nobody needs any more."""
        in_vain, self._in_vain = self._in_vain, False
        return in_vain

    def leave(self, ranks: Sequence[int]) -> None:
        """Wait no longer for these ranks: they take nothing more."""
        self.passed(ranks, BEYOND, 0)

    def _move_on(self, rank: int, number: int, microbatch: int) -> None:
        self._next[rank] = max((number, microbatch), self._next.get(rank, (0, 0)))

    def _make_known(self, step: PendingStep) -> None:
        """Make those samples holes that are known to be; if these are all, nothing need wait."""
        for sample in step.samples():
            if sample.ordinal in self._known_holes:
                self.failed(sample, "could not be used before the run was resumed")
        if step.number in self._known:
            step.gated = False

    def _catch_up(self, step: PendingStep, ranks: Iterable[int] | None = None) -> None:
        """Forget what ranks do not need; of a gated step not before its holes are known."""
        for rank in () if step.shut else self._next if ranks is None else ranks:
            if 0 <= rank < len(step.ranks):
                self._take(step, step.ranks[rank], *self._next[rank])
        while step.front < len(step.ranks[0]) and all(r[step.front].taken for r in step.ranks):
            step.front += 1
        if not step.untaken:
            self.steps.pop(step.number, None)

    def _take(
        self, step: PendingStep, batches: list[PendingMicrobatch], number: int, microbatch: int
    ) -> None:
        """Forget what a rank has before a place; what was not decoded yet need not be any more."""
        end = microbatch if step.number == number else len(batches) * (step.number < number)
        for batch in batches[:end]:
            if not batch.taken:
                for sample in batch.samples:
                    self._settle(sample)
                self._forget(batch)
                step.untaken -= 1

    def _is_here(self, batch: PendingMicrobatch, now: float) -> bool:
        """Whether a microbatch that is asked for can be sent.

        What was sent before and dropped here must be decoded again, once it had time to arrive: a
        busy rank asks again for what is on its way.
        """
        gone = [sample for sample in batch.samples if sample.lent and sample.payload is None]
        if gone and now >= batch.sent + LOST_S:
            for sample in gone:
                self.bytes.take_back(sample)
                batch.missing += 1
                self._want(sample)
        return not gone and not batch.missing

    def _forget(self, batch: PendingMicrobatch) -> None:
        batch.taken = True
        for sample in batch.samples:
            self.bytes.drop(sample)
            self.bytes.take_back(sample)
            self._in_vain |= sample.reserved > 0
            self.bytes.release(sample)
            self._samples.pop(sample.ordinal, None)

    def _settle(self, sample: Sample) -> None:
        if not sample.settled:
            sample.settled = True
            step = self.steps.get(sample.step)
            if step is not None:
                step.unsettled -= 1
                if step.gated and not step.unsettled:
                    self._catch_up(step)

    def _is_wanted(self, ordinal: int) -> bool:
        sample = self._samples.get(ordinal)
        return sample is not None and sample.is_open

    def _want(self, sample: Sample) -> None:
        if sample.is_open:
            self._queue.push(sample)

    def _has_credit(self, sample: Sample) -> bool:
        if self.bytes.has_room(sample) or sample.where == self.front:
            return True
        # A gated step needs each of its samples decoded once, one at a time if there is no room.
        first = self.steps[sample.step].gated and sample.step == self.front[0]
        return first and not sample.settled and not self.reserved_bytes

    def _change_missing(self, sample: Sample, by: int) -> None:
        step = self.steps.get(sample.step)
        if step is not None:
            step.ranks[sample.rank][sample.microbatch].missing += by

    def _evict(self) -> None:
        """Drop what ranks have, then the latest, until the budget holds; the front stays."""
        while self.bytes.is_exceeded:
            copy = self.bytes.latest_copy()
            if copy is not None:
                self.bytes.drop(copy)
                continue
            latest = self.bytes.latest()
            if latest.step >= 0 and latest.where <= self.front:
                return
            self.bytes.drop(latest)
            if latest.step >= 0:
                self._change_missing(latest, 1)
                self._want(latest)
