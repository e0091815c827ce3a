"""Planned steps: their microbatches, the samples they miss, and the messages they become.

Also how far each rank has got. Positions are (step, microbatch).
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from ...planning.problem.empty_cells import Cell, fill_empty
from ...protocol.job_spec import JobSpec
from ...protocol.parts import BatchItem, EpochPosition, Hole, Weights
from ...protocol.payload_messages import Batch
from .sample import PLACE, Place, Sample

Ranks = Sequence[Sequence[Sequence[Sample]]]


class PendingMicrobatch(msgspec.Struct):
    """The samples of one microbatch of one rank.

    `missing` of them are neither held nor sent nor holes. `sent_at` is when they were sent last to
    each process that has not lost them since; `taken` means that the rank, with all who share it,
    has acknowledged them.
    """

    samples: tuple[Sample, ...]
    missing: int
    taken: bool = False
    sent_at: dict[bytes, float] = msgspec.field(default_factory=dict)


class PendingStep(msgspec.Struct):
    """A step's microbatches by rank.

    `unsettled` samples may still turn out to be holes: if the step `waits_for_holes`, none of it is
    sent before all are settled, as the loss weights leave the holes out. It `is_settled` once it is
    decided what its microbatches are: they do not change then. `taken` is how many of its
    microbatches each rank has taken, `untaken_at` how many ranks have not taken each; all ranks
    have taken those before `front`. `holes` are the ordinals of the step's holes.
    """

    number: int
    after: EpochPosition
    ranks: list[list[PendingMicrobatch]]
    waits_for_holes: bool
    unsettled: int = 0
    is_settled: bool = False
    taken: list[int] = msgspec.field(default_factory=list)
    untaken_at: list[int] = msgspec.field(default_factory=list)
    front: int = 0
    holes: set[int] = msgspec.field(default_factory=set)
    weights: dict[Cell, Weights] = msgspec.field(default_factory=dict)

    @property
    def is_blocked(self) -> bool:
        """True if the step cannot be sent yet, because its holes are not known."""
        return self.waits_for_holes and self.unsettled > 0

    def samples(self) -> Iterator[Sample]:
        """Return all samples, rank by rank."""
        return (s for batches in self.ranks for batch in batches for s in batch.samples)

    def find(self, rank: int, microbatch: int) -> PendingMicrobatch | None:
        """Return a microbatch, None where there is no such."""
        if 0 <= rank < len(self.ranks) and 0 <= microbatch < len(self.ranks[rank]):
            return self.ranks[rank][microbatch]
        return None


class ReadyBatch(msgspec.Struct, frozen=True):
    """A microbatch that is ready: the message, its payload frames, and a hole that ends the run."""

    message: Batch
    payloads: tuple[object, ...]
    fatal: Sample | None


def plan_step(
    number: int, ranks: Ranks, after: EpochPosition, waits_for_holes: bool
) -> PendingStep:
    """Return a step of planned samples, and set in these where they belong."""
    microbatches = [
        [PendingMicrobatch(tuple(samples), 0) for samples in batches] for batches in ranks
    ]
    for r, batches in enumerate(microbatches):
        for m, batch in enumerate(batches):
            place = number, m, r
            for sample in batch.samples:
                sample.place = place
                # What was not decoded yet, and is no hole, is missing: the others are asked.
                batch.missing += not sample.settled or sample.is_missing
    step = PendingStep(number, after, microbatches, waits_for_holes)
    step.taken = [0] * len(ranks)
    step.untaken_at = [len(ranks)] * len(microbatches[0])
    settled = [sample for sample in step.samples() if sample.settled]
    step.unsettled = sum(map(len, itertools.chain(*ranks))) - len(settled)
    step.holes = {sample.ordinal for sample in settled if sample.failure}
    return step


def pack(step: PendingStep, rank: int, microbatch: int, run: int, job: JobSpec) -> ReadyBatch:
    """Return the message of a complete microbatch."""
    samples = step.ranks[rank][microbatch].samples
    good = _usable(samples, step.holes)
    bad = [each for each in samples if each.failure] if step.holes else []
    if not step.weights:
        step.weights = _all_weights(step, job.label)
    payloads = [sample.payload for sample in good if sample.payload is not None]
    servers = {each.server.token: each.server for each in payloads if each.server is not None}
    costs = np.array([sample.cost or () for sample in good], np.int64)
    total, padding = job.plan.sizing.total(costs) if good else ((), ())
    message = Batch(
        run=run,
        rank=rank,
        step=step.number,
        microbatch=microbatch,
        microbatches=len(step.ranks[rank]),
        weights=step.weights[rank, microbatch],
        costs=total,
        padding=padding,
        after=step.after,
        items=tuple(map(_item, good)),
        holes=tuple(map(_hole, bad)),
        step_holes=tuple(sorted(step.holes)),
        servers=tuple(servers.values()),
    )
    frames = tuple([payload.frame for payload in payloads if not payload.serial])
    return ReadyBatch(
        message, frames, next((s for s in bad if s.failure and s.failure.fatal), None)
    )


def _item(sample: Sample) -> BatchItem:
    payload = sample.payload
    assert payload is not None  # the microbatch is complete
    if payload.server is None:
        return BatchItem(sample.ordinal, sample.key, payload.header, 0, 0, 0)
    token, serial, nbytes = payload.server.token, payload.serial, payload.nbytes
    return BatchItem(sample.ordinal, sample.key, payload.header, token, serial, nbytes)


def _hole(sample: Sample) -> Hole:
    reason, source = (sample.failure.reason, sample.failure.source) if sample.failure else ("", "")
    return Hole(sample.ordinal, sample.key, reason, source)


def _usable(samples: Sequence[Sample], holes: Collection[int]) -> Sequence[Sample]:
    """Return the samples that are no holes; `holes` are those of their step."""
    return [sample for sample in samples if sample.failure is None] if holes else samples


def _all_weights(step: PendingStep, label: int) -> dict[Cell, Weights]:
    """Return the weights of every microbatch (rank, microbatch) of a step, holes left out."""
    # (samples, label tokens) per microbatch, then per rank, then of the step.
    counts = [
        [_count(batch.samples, label, step.holes) for batch in batches] for batches in step.ranks
    ]
    of_ranks = [(sum(c[0] for c in mbs), sum(c[1] for c in mbs)) for mbs in counts]
    whole = (sum(c[0] for c in of_ranks), sum(c[1] for c in of_ranks))
    return {
        (r, m): Weights(*count, *of_ranks[r], *whole)
        for r, microbatches in enumerate(counts)
        for m, count in enumerate(microbatches)
    }


def _count(samples: Sequence[Sample], label: int, holes: Collection[int]) -> tuple[int, int]:
    """Count samples and label tokens without holes; `holes` are those of the step."""
    good = _usable(samples, holes)
    return len(good), sum([s.cost[label] for s in good if s.cost]) if label >= 0 else 0


def fill_empty_microbatches(step: PendingStep) -> list[Sample] | None:
    """Move samples to a step's empty microbatches, none of the step being taken; return them.

    For loops that cannot take an empty one: torch's default_collate makes no batch of no samples,
    and a rank that left a microbatch out would make the others wait for ever. Which sample moves
    follows from the plan and the holes alone, so that a resumed run does the same. The step's
    samples and the sums of its weights stay as they are; budgets hold, as a sample that fits among
    others fits alone. None if there are fewer usable samples than microbatches.
    """
    batches = {(r, m): b for r, rank in enumerate(step.ranks) for m, b in enumerate(rank)}
    moved = fill_empty({cell: [*_usable(b.samples, step.holes)] for cell, b in batches.items()})
    for sample, giver, cell in moved or ():
        _move(sample, batches[giver], batches[cell])
        rank, microbatch = cell
        sample.place = step.number, microbatch, rank
    return None if moved is None else [sample for sample, _, _ in moved]


def _move(sample: Sample, old: PendingMicrobatch, new: PendingMicrobatch) -> None:
    old.samples = tuple(each for each in old.samples if each is not sample)
    new.samples = tuple(sorted([*new.samples, sample], key=lambda each: each.ordinal))
    old.missing -= sample.is_missing
    new.missing += sample.is_missing


Position = tuple[int, int]
BEGINNING: Position = (0, 0)


class RankProgress(dict[int, Position]):
    """The first position that each rank may still need; it only moves on.

    >>> progress = RankProgress()
    >>> progress.move_on(0, (2, 1)); progress.move_on(0, (1, 0))
    >>> progress.needed([0]), progress.needed([0, 1])
    ((2, 1), (0, 0))
    """

    def move_on(self, rank: int, position: Position) -> None:
        """Record that a rank needs nothing before a position."""
        self[rank] = max(position, self.get(rank, BEGINNING))

    def needed(self, ranks: Iterable[int]) -> Position:
        """Return the first position that one of these ranks may still need."""
        return min(self.get(rank, BEGINNING) for rank in ranks)


class PlannedSteps:
    """Steps by number, samples by ordinal."""

    def __init__(self, by_number: dict[int, PendingStep]) -> None:
        self.by_number = by_number
        self.samples: dict[int, Sample] = {}
        # Microbatches that may have become ready.
        self._changed: list[Place] = []

    @property
    def front(self) -> Position:
        """The earliest position that some rank has not taken, or (-1, -1)."""
        if not self.by_number:
            return -1, -1
        first = self.by_number[min(self.by_number)]
        return first.number, first.front

    def find(self, rank: int, number: int, microbatch: int) -> PendingMicrobatch | None:
        """Return a step's microbatch of a rank, None where there is no such."""
        step = self.by_number.get(number)
        return step.find(rank, microbatch) if step is not None else None

    def change_missing(self, samples: Iterable[Sample], by: int) -> None:
        """Change how many samples the microbatches of planned samples miss, `by` for each."""
        for place, number in Counter(map(PLACE, samples)).items():
            step = self.by_number.get(place[0])
            if step is None:
                continue
            batch = step.ranks[place[2]][place[1]]
            batch.missing += by * number
            if not batch.missing:
                self._changed.append(place)

    def settle(self, samples: Iterable[Sample]) -> list[PendingStep]:
        """Count samples as decoded once, or as holes; return the steps that it is the last of."""
        fresh = [sample for sample in samples if not sample.settled]
        for sample in fresh:
            sample.settled = True
        settled = list[PendingStep]()
        for place, number in Counter(map(PLACE, fresh)).items():
            step = self.by_number.get(place[0])
            if step is not None:
                step.unsettled -= number
                if not step.unsettled:
                    settled.append(step)
        return settled

    def note_step(self, step: PendingStep) -> None:
        """Note that microbatches of a step may have become ready."""
        self._changed += [
            (step.number, number, rank)
            for rank, batches in enumerate(step.ranks)
            for number, batch in enumerate(batches)
            if not batch.missing
        ]

    def take_changed(self) -> list[Place]:
        """Return, once, the microbatches that may have become ready."""
        changed, self._changed = self._changed, []
        return changed
