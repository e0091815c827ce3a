"""Choose the samples to decode next, and the payloads to drop, so that the byte budget holds.

Decoded payloads are a cache: when the budget is exceeded those needed last are dropped and decoded
again later, identically. The front (the earliest microbatch that some rank has not taken) may
always be decoded, whatever the budget, so that the line cannot jam.
"""

from collections.abc import Sequence

from .byte_budget import ByteBudget
from .decode_queue import DecodeQueue
from .planned_steps import PlannedSteps
from .sample import Sample
from .shared_payloads import SharedPayload


class DecodeScheduler:
    """The order of decoding, and what the byte budget allows of it."""

    def __init__(self, planned: PlannedSteps, budget: ByteBudget) -> None:
        self.planned = planned
        self.budget = budget
        self._queue = DecodeQueue(self._is_wanted)

    def queue_microbatch(self, samples: Sequence[Sample]) -> None:
        """Queue the samples of a microbatch, those that must be decoded."""
        fresh = [sample.ordinal for sample in samples if not sample.settled]
        if fresh:
            self._queue.push(samples[0].place, fresh, is_dropped=False)
        if len(fresh) < len(samples):
            for sample in samples:
                if sample.settled:
                    self.queue(sample)

    def queue(self, sample: Sample) -> None:
        """Queue a planned sample, unless it need not be decoded."""
        if sample.is_missing:
            self._queue.push(sample.place, (sample.ordinal,), is_dropped=sample.settled)

    def move(self, sample: Sample) -> None:
        """Queue a sample where its new microbatch needs it, if it is queued."""
        if self._queue.remove(sample.ordinal):
            self.queue(sample)

    def requeue(self, sample: Sample) -> None:
        """Queue a sample again whose lease was lost, unless it is not needed any more."""
        if sample.ordinal in self.planned.samples and sample.reserved:
            self.budget.release((sample,))
            self.queue(sample)

    def has_samples(self) -> bool:
        """Return whether samples are to be decoded."""
        return self._queue.has_samples()

    def next_rank(self, rank: int) -> int | None:
        """Return the first rank, from `rank` on, that needs samples of the nearest microbatch."""
        found = self._queue.nearest(self.planned.is_front, rank)
        return None if found is None else found[0][2]

    def next_position(self, rank: int) -> tuple[int, int] | None:
        """Return the step and microbatch of the next sample; None if there is none."""
        found = self._queue.nearest(self.planned.is_front, rank)
        return None if found is None else found[0][:2]

    def next_samples(
        self, most: int, rank: int = 0, spans: bool = False, most_whole: int = 0
    ) -> list[Sample]:
        """Return up to `most` samples to decode, nearest first; of one microbatch unless `spans`.

        `most_whole`, if it is not 0: a further microbatch is begun only if all that waits of it is
        taken, and of the first all that waits, up to so many. Of each those of `rank` first, and of
        the ranks after it. A sample that is suspected of killing workers comes alone.
        """
        chosen: list[Sample] = []
        while len(chosen) < most:
            found = self._queue.nearest(self.planned.is_front, rank)
            if found is None:
                break
            if chosen and not spans and found[0][:2] != chosen[0].position:
                break
            waiting = len(found[1])
            # Only a worker that has all of a microbatch lays it out.
            if not chosen and most < waiting <= most_whole:
                most = waiting
            if chosen and most_whole and waiting > most - len(chosen):
                break
            if not self._choose(found[1], most, chosen) or chosen[-1].crash_count:
                break
        return chosen

    def _choose(self, waiting: list[int], most: int, chosen: list[Sample]) -> bool:
        """Choose samples of those that wait at a place; return whether more can be chosen."""
        looked_at = waiting[: most - len(chosen)]
        found = map(self.planned.samples.get, looked_at)
        wanted = [
            each for each in found if each is not None and each.is_missing and not each.reserved
        ]
        suspected = [number for number, each in enumerate(wanted) if each.crash_count]
        end = len(wanted)
        if suspected:  # what is before it, or it alone where it is the first of all
            end = suspected[0] or (0 if chosen else 1)
        taken = self._reserve(wanted[:end])
        chosen += wanted[:taken]
        is_all = taken == len(wanted)
        del waiting[: len(looked_at) if is_all else waiting.index(wanted[taken].ordinal)]
        return is_all

    def _reserve(self, samples: list[Sample]) -> int:
        """Reserve the bytes of samples to be decoded; return how many, from the first, may be."""
        taken = 0
        while True:
            taken += self.budget.reserve_room(samples[taken:])
            if taken == len(samples) or not self._may_exceed(samples[taken]):
                return taken
            self.budget.reserve(samples[taken])
            taken += 1

    def evict(self) -> None:
        """Drop payloads until the budget holds: first copies that ranks have, then the latest.

        The front stays, even if it alone exceeds the budget.
        """
        while self.budget.is_exceeded:
            copy = self.budget.latest_copy()
            if copy is not None:
                self.budget.drop((copy,))
                continue
            latest = self.budget.latest()
            if latest.step >= 0 and self._is_needed_now(latest.position):
                return
            self._drop(latest)

    def _is_needed_now(self, position: tuple[int, int]) -> bool:
        return position <= self.planned.front or self.planned.is_front(position)

    def drop_those_of(self, worker: bytes) -> None:
        """Drop the payloads that lie in the memory of a worker that is gone."""
        for sample in self.budget.held_of(worker):
            self._drop(sample)

    def _drop(self, sample: Sample) -> None:
        """Drop a payload; if it is planned, queue it to be decoded again.

        With a part of a batch all of it goes.
        """
        for each in self._parts(sample):
            self.budget.drop((each,))
            if each.step >= 0:
                self.planned.change_missing((each,), 1)
                self.queue(each)

    def _parts(self, sample: Sample) -> Sequence[Sample]:
        """Return the samples whose payloads are of use together only; none if it has none."""
        payload = sample.payload
        if payload is None or type(payload) is not SharedPayload or payload.parts == 1:
            return () if payload is None else (sample,)
        step, microbatch, rank = sample.place
        found = self.planned.find(rank, step, microbatch)
        return (sample,) if found is None else found[1].samples

    def _is_wanted(self, ordinal: int) -> bool:
        """Return whether a sample that is queued must still be decoded, and is on no lease.

        Where a late result comes of a sample that was queued again, and is dropped, it is queued
        twice.
        """
        sample = self.planned.samples.get(ordinal)
        return sample is not None and sample.is_missing and not sample.reserved

    def _may_exceed(self, sample: Sample) -> bool:
        """Return whether a sample may be decoded although it does not fit into the budget."""
        if self.planned.is_front(sample.position):
            return True
        # A step that waits for holes needs all its samples decoded once before its front can leave:
        # without room, one at a time.
        step = self.planned.by_number[sample.step]
        is_first = step.waits_for_holes and sample.step == self.planned.front[0]
        return is_first and not sample.settled and not self.budget.reserved_bytes
