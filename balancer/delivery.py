"""What has been planned and not yet delivered: samples, their payloads, and the byte budget.

Theory of operation. A step enters with its microbatches; its samples are decoded nearest first
while the bytes held and under way stay within the budget. Decoded payloads are a cache: when the
budget is exceeded the latest are dropped and decoded again later, identically. The front (the
earliest microbatch that some rank has not taken) may always be decoded, whatever the budget says,
so that the line cannot jam. Where holes are allowed a step is *gated*: none of its microbatches
leaves before all its samples have been decoded once, because every weight in the step counts the
holes out.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .messages import Batch, Hole, Item, Place, Weights

Slot = int
ANY_SLOT: Slot = -1
# Before the first payload has arrived its size is guessed as this part of the budget.
FIRST_GUESS = 64


@dataclass(slots=True)
class Sample:
    """A sample on its way: what is known of it, who has it, where it will go.

    `nbytes` is the payload's expected size until it arrives, then the size; `reason` says why the
    sample is a hole, `fatal` that the hole ends the run when its microbatch is due; `settled` means
    that the sample was decoded once or is a hole.
    """

    ordinal: int
    index: int
    pickled: bytes = b""
    pin: Slot = ANY_SLOT
    key: str = ""
    cost: tuple[int, ...] | None = None
    nbytes: int = 0
    step: int = -1
    microbatch: int = -1
    rank: int = -1
    header: bytes = b""
    payload: object = None
    reserved: int = 0
    settled: bool = False
    reason: str = ""
    fatal: bool = False
    strikes: int = 0


@dataclass(slots=True)
class _Microbatch:
    samples: tuple[Sample, ...]
    missing: int
    taken: bool = False


@dataclass(slots=True)
class _Step:
    number: int
    after: Place
    ranks: list[list[_Microbatch]]
    unsettled: int
    untaken: int
    front: int = 0
    weights: dict[tuple[int, int], Weights] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A microbatch that is ready: the message, its payload frames, and what makes it unusable."""

    message: Batch
    payloads: tuple[object, ...]
    fatal: Sample | None


class Delivery:
    """The planned part of a run, from planned steps to acknowledged microbatches."""

    def __init__(self, run: int, budget_bytes: int, gated: bool, label: int = -1) -> None:
        """`label` is the position of the resource that counts label tokens, -1 where none does."""
        self.run = run
        self.budget_bytes = budget_bytes
        self.gated = gated
        self.label = label
        self.held_bytes = 0
        self.reserved_bytes = 0
        self.largest = 0
        self.known_holes: frozenset[int] = frozenset()
        self._left: set[int] = set()
        # What ranks had taken of steps that are not planned yet, when they came to this run.
        self._ahead: dict[int, tuple[int, int]] = {}
        # The last (step, microbatch) that each rank has taken in this run.
        self.reached: dict[int, tuple[int, int]] = {}
        self.steps: dict[int, _Step] = {}
        self._fresh: dict[Slot, list[tuple[int, int, int, int]]] = {ANY_SLOT: []}
        self._evicted: list[tuple[int, int, int, int]] = []
        self._samples: dict[int, Sample] = {}
        self._holding: dict[int, Sample] = {}

    def add_step(
        self, number: int, ranks: Sequence[Sequence[Sequence[Sample]]], after: Place, skip: int = 0
    ) -> None:
        """Take in a planned step; its first `skip` microbatches have been delivered before.

        Raises ValueError if one microbatch per rank cannot fit into the budget.
        """
        for r, microbatches in enumerate(ranks):
            for m, samples in enumerate(microbatches):
                for sample in samples:
                    sample.step, sample.microbatch, sample.rank = number, m, r
                    if sample.ordinal in self.known_holes:
                        self.failed(sample, "could not be used before the run was resumed")
        self._refuse_small_budget(number, ranks)
        step = _Step(
            number, after, [[_microbatch(samples) for samples in mbs] for mbs in ranks], 0, 0
        )
        self.steps[number] = step
        for batches in step.ranks:
            for batch in batches[:skip]:
                self._forget(batch)
            for batch in batches[skip:]:
                step.untaken += 1
                step.unsettled += sum(not sample.settled for sample in batch.samples)
                for sample in batch.samples:
                    self._samples[sample.ordinal] = sample
                    self._queue(sample)
        step.front = skip
        self._catch_up(step)

    def work(self, slot: Slot, most: int) -> list[Sample]:
        """Return up to `most` samples of one microbatch for a worker to decode, nearest first.

        One that is suspected of killing workers comes alone.
        """
        chosen: list[Sample] = []
        while len(chosen) < most:
            heap = self._next_heap(slot)
            if heap is None:
                break
            sample = self._samples[heap[0][3]]
            if chosen and (sample.strikes or _where(sample) != _where(chosen[0])):
                break
            if not self._has_credit(sample):
                break
            heapq.heappop(heap)
            sample.reserved = self._expected(sample)
            self.reserved_bytes += sample.reserved
            chosen.append(sample)
            if sample.strikes:
                break
        return chosen

    def give_back(self, sample: Sample) -> None:
        """Take back a sample whose lease was lost."""
        if sample.ordinal in self._samples and sample.reserved:
            self._release(sample)
            self._queue(sample)

    def arrived(self, sample: Sample, header: bytes, payload: object, nbytes: int) -> None:
        """Take in a decoded payload; a sample that is not wanted (any more) is ignored."""
        self._release(sample)
        if sample.payload is not None or sample.reason:
            return
        if sample.step >= 0 and sample.ordinal not in self._samples:
            return
        sample.header, sample.payload, sample.nbytes = header, payload, nbytes
        self.largest = max(self.largest, nbytes)
        self.held_bytes += nbytes
        self._holding[sample.ordinal] = sample
        self._settle(sample)
        self._change_missing(sample, -1)
        self._evict()

    def failed(self, sample: Sample, reason: str, fatal: bool = False) -> None:
        """Turn a sample into a hole."""
        self._release(sample)
        if sample.payload is not None or sample.reason:
            return
        sample.reason, sample.fatal = reason, fatal
        self._settle(sample)
        self._change_missing(sample, -1)

    def refuse(self, sample: Sample, reason: str) -> None:
        """Turn a sample that is not planned yet into a hole, even if it has been decoded."""
        self._drop(sample)
        self.failed(sample, reason)

    def discard_unplanned(self, sample: Sample) -> None:
        """Drop the payload of a sample that no step took (it was decoded to be measured)."""
        if sample.step < 0:
            self._drop(sample)

    def ready(self, rank: int, number: int, microbatch: int) -> Parcel | None:
        """Return a microbatch if it is complete and may leave."""
        step, batch = self._find(rank, number, microbatch)
        if (
            step is None
            or batch is None
            or batch.taken
            or batch.missing
            or (self.gated and step.unsettled)
        ):
            return None
        good = [sample for sample in batch.samples if not sample.reason]
        message = Batch(
            run=self.run,
            rank=rank,
            step=number,
            microbatch=microbatch,
            microbatches=len(step.ranks[rank]),
            weights=self._weights(step, rank, microbatch),
            costs=_sum_costs(good),
            after=step.after,
            items=tuple(Item(s.ordinal, s.key, s.header) for s in good),
            holes=tuple(Hole(s.ordinal, s.key, s.reason) for s in batch.samples if s.reason),
            step_holes=_holes(step),
        )
        fatal = next((sample for sample in batch.samples if sample.fatal), None)
        return Parcel(message, tuple(s.payload for s in good), fatal)

    def taken(self, rank: int, number: int, microbatch: int) -> None:
        """Forget an acknowledged microbatch and all before it; saying it twice changes nothing."""
        known = self._find(rank, number, microbatch)[1] is not None
        if known or number > max(self.steps, default=-1):
            self._ahead[rank] = max((number, microbatch), self._ahead.get(rank, (-1, -1)))
        if known:
            self.reached[rank] = max((number, microbatch), self.reached.get(rank, (-1, -1)))
            for step in list(self.steps.values()):
                self._catch_up(step)

    def leave(self, ranks: Sequence[int]) -> None:
        """Wait no longer for these ranks: they take nothing more."""
        self._left.update(ranks)
        for step in list(self.steps.values()):
            self._catch_up(step)

    @property
    def front(self) -> tuple[int, int]:
        """The earliest (step, microbatch) that some rank has not taken, or (-1, -1)."""
        if not self.steps:
            return -1, -1
        first = self.steps[min(self.steps)]
        return first.number, first.front

    def _catch_up(self, step: _Step) -> None:
        """Forget what ranks have taken; of a gated step not before its holes are known."""
        if not (self.gated and step.unsettled):
            for rank in self._left:
                self._take(step, rank, len(step.ranks[rank]))
            for rank, (last, microbatch) in self._ahead.items():
                if step.number <= last and 0 <= rank < len(step.ranks):
                    whole = step.number < last
                    self._take(step, rank, len(step.ranks[rank]) if whole else microbatch + 1)
        self._advance(step)

    def _take(self, step: _Step, rank: int, microbatches: int) -> None:
        """Forget a rank's first microbatches; what was not decoded yet need not be any more."""
        for batch in step.ranks[rank][:microbatches]:
            if not batch.taken:
                for sample in batch.samples:
                    self._settle(sample)
                self._forget(batch)
                step.untaken -= 1

    def _advance(self, step: _Step) -> None:
        while step.front < len(step.ranks[0]) and all(r[step.front].taken for r in step.ranks):
            step.front += 1
        if not step.untaken:
            self.steps.pop(step.number, None)

    def _find(
        self, rank: int, number: int, microbatch: int
    ) -> tuple[_Step | None, _Microbatch | None]:
        step = self.steps.get(number)
        if step is None or not 0 <= rank < len(step.ranks):
            return step, None
        batches = step.ranks[rank]
        return step, batches[microbatch] if 0 <= microbatch < len(batches) else None

    def _next_heap(self, slot: Slot) -> list[tuple[int, int, int, int]] | None:
        """Pick the queue to serve: what the front has lost first, then what was never decoded."""
        fresh = [self._fresh.get(slot) if slot != ANY_SLOT else None, self._fresh[ANY_SLOT]]
        heaps = [heap for heap in fresh if heap]
        for heap in (*heaps, self._evicted):
            while heap and not self._wanted(heap[0][3]):
                heapq.heappop(heap)
        heaps = [heap for heap in heaps if heap]
        if self._evicted and (not heaps or self._evicted[0][:2] == self.front):
            return self._evicted
        return min(heaps, key=lambda heap: heap[0]) if heaps else None

    def _wanted(self, ordinal: int) -> bool:
        sample = self._samples.get(ordinal)
        return sample is not None and sample.payload is None and not sample.reason

    def _has_credit(self, sample: Sample) -> bool:
        total = self.held_bytes + self.reserved_bytes + self._expected(sample)
        if total <= self.budget_bytes or _where(sample) == self.front:
            return True
        # A gated step needs each of its samples decoded once, one at a time if there is no room.
        return (
            self.gated
            and not sample.settled
            and not self.reserved_bytes
            and (sample.step == self.front[0])
        )

    def _expected(self, sample: Sample) -> int:
        return max(1, sample.nbytes or self.largest or self.budget_bytes // FIRST_GUESS)

    def _queue(self, sample: Sample) -> None:
        if sample.payload is not None or sample.reason:
            return
        entry = (sample.step, sample.microbatch, sample.rank, sample.ordinal)
        heap = self._evicted if sample.settled else self._fresh.setdefault(sample.pin, [])
        heapq.heappush(heap, entry)

    def _release(self, sample: Sample) -> None:
        self.reserved_bytes -= sample.reserved
        sample.reserved = 0

    def _settle(self, sample: Sample) -> None:
        if not sample.settled:
            sample.settled = True
            step = self.steps.get(sample.step)
            if step is not None:
                step.unsettled -= 1
                if self.gated and not step.unsettled:
                    self._catch_up(step)

    def _change_missing(self, sample: Sample, by: int) -> None:
        step = self.steps.get(sample.step)
        if step is not None:
            step.ranks[sample.rank][sample.microbatch].missing += by

    def _evict(self) -> None:
        """Drop the latest payloads until the budget holds; the front keeps its own."""
        while self.held_bytes > self.budget_bytes:
            latest = max(self._holding.values(), key=_lateness)
            if latest.step >= 0 and _where(latest) <= self.front:
                return
            self._drop(latest)
            if latest.step >= 0:
                self._change_missing(latest, 1)
                self._queue(latest)

    def _drop(self, sample: Sample) -> None:
        if self._holding.pop(sample.ordinal, None) is not None:
            self.held_bytes -= sample.nbytes
            sample.header, sample.payload = b"", None

    def _forget(self, batch: _Microbatch) -> None:
        batch.taken = True
        for sample in batch.samples:
            self._drop(sample)
            self._release(sample)
            self._samples.pop(sample.ordinal, None)

    def _weights(self, step: _Step, rank: int, microbatch: int) -> Weights:
        if not step.weights:
            step.weights = _all_weights(step, self.label)
        return step.weights[rank, microbatch]

    def _refuse_small_budget(
        self, number: int, ranks: Sequence[Sequence[Sequence[Sample]]]
    ) -> None:
        for column in _columns(ranks):
            need = sum(sample.nbytes for sample in column)
            if need > self.budget_bytes:
                raise ValueError(
                    f"a byte budget of {self.budget_bytes} cannot hold one microbatch per rank: "
                    f"step {number} needs {need}; raise buffer_bytes to at least that"
                )


def _microbatch(samples: Sequence[Sample]) -> _Microbatch:
    missing = sum(sample.payload is None and not sample.reason for sample in samples)
    return _Microbatch(tuple(samples), missing)


def _columns(ranks: Sequence[Sequence[Sequence[Sample]]]) -> Iterator[list[Sample]]:
    for m in range(max((len(microbatches) for microbatches in ranks), default=0)):
        yield [sample for microbatches in ranks for sample in microbatches[m]]


def _where(sample: Sample) -> tuple[int, int]:
    return sample.step, sample.microbatch


def _lateness(sample: Sample) -> tuple[bool, int, int, int]:
    """Order payloads by how late they are needed; what is not planned yet comes last of all."""
    return sample.step < 0, sample.step, sample.microbatch, sample.ordinal


def _sum_costs(samples: Sequence[Sample]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*[sample.cost or () for sample in samples], strict=True)))


def _all_weights(step: _Step, label: int) -> dict[tuple[int, int], Weights]:
    """Count samples and label tokens without holes, for every microbatch of a step."""
    counts = [[_count(batch.samples, label) for batch in batches] for batches in step.ranks]
    of_ranks = [(sum(c[0] for c in mbs), sum(c[1] for c in mbs)) for mbs in counts]
    whole = (sum(c[0] for c in of_ranks), sum(c[1] for c in of_ranks))
    return {
        (r, m): Weights(*count, *of_ranks[r], *whole)
        for r, microbatches in enumerate(counts)
        for m, count in enumerate(microbatches)
    }


def _holes(step: _Step) -> tuple[int, ...]:
    samples = (s for mbs in step.ranks for batch in mbs for s in batch.samples)
    return tuple(sorted(sample.ordinal for sample in samples if sample.reason))


def _count(samples: Sequence[Sample], label: int) -> tuple[int, int]:
    good = [sample for sample in samples if not sample.reason]
    return len(good), sum(s.cost[label] for s in good if s.cost) if label >= 0 else 0
