"""Choose the samples to decode next, and the payloads to drop, so that the byte budget holds.

Decoded payloads are a cache: when the budget is exceeded those needed last are dropped and decoded
again later, identically. The front (the earliest microbatch that some rank has not taken) may
always be decoded, whatever the budget, so that the line cannot jam.
"""

import bisect
import heapq
from collections.abc import Callable, Iterable, Sequence

from .sample import ByteBudget, Place, Sample
from .step import PlannedSteps, Position


class _Waiting:
    """Ordinals by place, nearest first: by step and microbatch, and by rank from any one on."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` returns by its ordinal whether a sample must still be decoded."""
        self._is_wanted = is_wanted
        self._positions: list[Position] = []
        # Of each position the ranks with samples, sorted.
        self._ranks: dict[Position, list[int]] = {}
        self._at: dict[Place, list[int]] = {}

    def push(self, place: Place, ordinals: Iterable[int]) -> None:
        """Add samples."""
        waiting = self._at.get(place)
        if waiting is not None:
            waiting.extend(ordinals)
            waiting.sort()
            return
        self._at[place] = sorted(ordinals)
        position = place[:2]
        ranks = self._ranks.get(position)
        if ranks is None:
            heapq.heappush(self._positions, position)
            self._ranks[position] = [place[2]]
        else:
            bisect.insort(ranks, place[2])

    def remove(self, ordinal: int) -> bool:
        """Remove a sample, wherever it is; return whether it was there."""
        for waiting in self._at.values():
            if ordinal in waiting:
                waiting.remove(ordinal)
                return True
        return False

    def first(self, rank: int) -> tuple[Place, list[int]] | None:
        """Return the nearest place with its samples, the first of which is wanted; None: none.

        Of the ranks of a microbatch the first from `rank` on. Samples are not removed when they
        arrive or are taken, but here.
        """
        while self._positions:
            position = self._positions[0]
            ranks = self._ranks[position]
            at = bisect.bisect_left(ranks, rank) % len(ranks)
            place = (*position, ranks[at])
            waiting = self._at[place]
            unwanted = 0
            while unwanted < len(waiting) and not self._is_wanted(waiting[unwanted]):
                unwanted += 1
            del waiting[:unwanted]
            if waiting:
                return place, waiting
            del self._at[place], ranks[at]
            if not ranks:
                heapq.heappop(self._positions)
                del self._ranks[position]
        return None


class DecodeScheduler:
    """The order of decoding, and what the byte budget allows of it."""

    def __init__(self, planned: PlannedSteps, budget: ByteBudget) -> None:
        self.planned = planned
        self.budget = budget
        # Planned samples: those never decoded, and those dropped since.
        self._fresh, self._dropped = _Waiting(self._is_wanted), _Waiting(self._is_wanted)

    def queue_microbatch(self, samples: Sequence[Sample]) -> None:
        """Queue the samples of a microbatch, those that must be decoded."""
        fresh = [sample.ordinal for sample in samples if not sample.settled]
        if fresh:
            self._fresh.push(samples[0].place, fresh)
        for sample in samples if len(fresh) < len(samples) else ():
            if sample.settled:
                self.queue(sample)

    def queue(self, sample: Sample) -> None:
        """Queue a planned sample, unless it need not be decoded."""
        if sample.is_missing:
            queue = self._dropped if sample.settled else self._fresh
            queue.push(sample.place, (sample.ordinal,))

    def move(self, sample: Sample) -> None:
        """Queue a sample where its new microbatch needs it, if it is queued."""
        if self._fresh.remove(sample.ordinal) or self._dropped.remove(sample.ordinal):
            self.queue(sample)

    def requeue(self, sample: Sample) -> None:
        """Queue a sample again whose lease was lost, unless it is not needed any more."""
        if sample.ordinal in self.planned.samples and sample.reserved:
            self.budget.release_reserved((sample,))
            self.queue(sample)

    def nearest(self, rank: int) -> tuple[Place, list[int]] | None:
        """Return the place of the next sample, and the ordinals there; None if there is none.

        Of the ranks of a microbatch the first from `rank` on. Some ordinals after the first may not
        be wanted any more. Dropped samples wait until the front needs them or nothing else is left:
        decoded earlier, they would be dropped again.
        """
        fresh, dropped = self._fresh.first(rank), self._dropped.first(rank)
        if dropped is not None and (fresh is None or dropped[0][:2] == self.planned.front):
            return dropped
        return fresh

    def next_samples(self, most: int, rank: int = 0, spans: bool = False) -> list[Sample]:
        """Return up to `most` samples to decode, nearest first; of one microbatch unless `spans`.

        Of each microbatch those of `rank` first, and of the ranks after it. A sample that is
        suspected of killing workers comes alone.
        """
        chosen: list[Sample] = []
        while len(chosen) < most:
            found = self.nearest(rank)
            if found is None or (chosen and not spans and found[0][:2] != chosen[0].position):
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
        """Drop payloads until the budget holds, the latest first.

        The front stays, even if it alone exceeds the budget.
        """
        while self.budget.is_exceeded:
            latest = self.budget.latest()
            if latest.step >= 0 and latest.position <= self.planned.front:
                return
            self._drop(latest)

    def drop_those_of(self, worker: bytes) -> None:
        """Drop the payloads that a worker keeps which is gone."""
        for sample in list(self.budget.held.values()):
            if sample.payload is not None and sample.payload.worker == worker:
                self._drop(sample)

    def _drop(self, sample: Sample) -> None:
        """Drop a payload; if it is planned, queue it to be decoded again."""
        self.budget.drop((sample,))
        if sample.step >= 0:
            self.planned.change_missing((sample,), 1)
            self.queue(sample)

    def _is_wanted(self, ordinal: int) -> bool:
        """Return whether a sample that is queued must still be decoded, and is on no lease.

        Where a late result comes of a sample that was queued again, and is dropped, it is queued
        twice.
        """
        sample = self.planned.samples.get(ordinal)
        return sample is not None and sample.is_missing and not sample.reserved

    def _may_exceed(self, sample: Sample) -> bool:
        """Return whether a sample may be decoded although it does not fit into the budget."""
        if sample.position == self.planned.front:
            return True
        # A step that waits for holes needs all its samples decoded once before its front can leave:
        # without room, one at a time.
        step = self.planned.by_number[sample.step]
        is_first = step.waits_for_holes and sample.step == self.planned.front[0]
        return is_first and not sample.settled and not self.budget.reserved_bytes
