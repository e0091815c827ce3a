"""A planned step: its microbatches, the samples they miss, and the messages they become."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ...protocol.messages import (
    NO_HANDLES,
    Batch,
    BatchItem,
    EpochPosition,
    Handles,
    Hole,
    PayloadServer,
    Weights,
)
from .sample import Place, Sample
from .shared_payloads import RUN, SharedPayload, SharedRun

Ranks = Sequence[Sequence[Sequence[Sample]]]
_NBYTES, _OFFSET, _HANDLE = attrgetter("nbytes"), attrgetter("offset"), attrgetter("handle")


class PendingMicrobatch(msgspec.Struct):
    """The samples of one microbatch of one rank.

    `missing` of them are neither held nor lent nor holes. `sent_at` is when they were sent last to
    each process that has not lost them since; `taken` means that the rank, with all who share it,
    has acknowledged them.
    """

    samples: tuple[Sample, ...]
    missing: int
    taken: bool = False
    sent_at: dict[bytes, float] = msgspec.field(default_factory=dict)

    def sent_bytes(self) -> int | None:
        """Return the bytes of its payloads, None if some were not sent to all that wait for it."""
        good = [sample for sample in self.samples if not sample.reason]
        is_sent = bool(self.sent_at) and all(sample.lent for sample in good)
        return sum(map(_NBYTES, good)) if is_sent else None


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
    weights: dict[tuple[int, int], Weights] = msgspec.field(default_factory=dict)

    @property
    def is_blocked(self) -> bool:
        """True if the step cannot be sent yet, because its holes are not known."""
        return self.waits_for_holes and self.unsettled > 0

    @property
    def untaken(self) -> int:
        """The number of microbatches that no rank has taken yet."""
        return sum(self.untaken_at)

    def take(self, rank: int, end: int) -> None:
        """Count a rank's microbatches before `end` as taken."""
        for microbatch in range(self.taken[rank], end):
            self.untaken_at[microbatch] -= 1
        self.taken[rank] = max(self.taken[rank], end)

    def move_front(self) -> None:
        """Move the front past microbatches that all ranks have taken."""
        while self.front < len(self.untaken_at) and not self.untaken_at[self.front]:
            self.front += 1

    def first_needed(self, rank: int, untold_bytes: int) -> int:
        """Return the first microbatch that a rank cannot have taken.

        It may have taken what it was sent: what it has not acknowledged has fewer bytes in all.
        """
        microbatch, batches = self.taken[rank], self.ranks[rank]
        while microbatch < len(batches):
            nbytes = batches[microbatch].sent_bytes()
            if nbytes is None or nbytes > untold_bytes:
                break
            untold_bytes -= nbytes
            microbatch += 1
        return microbatch

    def samples(self) -> Iterator[Sample]:
        """Return all samples, rank by rank."""
        return (s for batches in self.ranks for batch in batches for s in batch.samples)

    def find(self, rank: int, microbatch: int) -> PendingMicrobatch | None:
        """Return a microbatch, None where there is no such."""
        if 0 <= rank < len(self.ranks) and 0 <= microbatch < len(self.ranks[rank]):
            return self.ranks[rank][microbatch]
        return None


class ReadyBatch(msgspec.Struct, frozen=True):
    """A microbatch that is ready: the message, its payload frames, and a hole that ends the run.

    runs: those in workers' memory of which it has handles.
    """

    message: Batch
    payloads: tuple[object, ...]
    fatal: Sample | None
    runs: tuple[SharedRun, ...] = ()


def plan_step(
    number: int, ranks: Ranks, after: EpochPosition, waits_for_holes: bool
) -> PendingStep:
    """Return a step of planned samples, and set in these where they belong."""
    microbatches = [
        [_microbatch((number, m, r), samples) for m, samples in enumerate(batches)]
        for r, batches in enumerate(ranks)
    ]
    step = PendingStep(number, after, microbatches, waits_for_holes)
    step.taken = [0] * len(ranks)
    step.untaken_at = [len(ranks)] * len(microbatches[0])
    settled = [sample for sample in step.samples() if sample.settled]
    step.unsettled = sum(map(len, itertools.chain(*ranks))) - len(settled)
    step.holes = {sample.ordinal for sample in settled if sample.reason}
    return step


def refuse_small_budget(step: PendingStep, budget_bytes: int) -> None:
    """Raise ValueError if one microbatch per rank does not fit into a byte budget."""
    for m in range(max((len(batches) for batches in step.ranks), default=0)):
        need = sum(sum(map(_NBYTES, rank[m].samples)) for rank in step.ranks)
        if need > budget_bytes:
            raise ValueError(
                f"a byte budget of {budget_bytes} cannot hold one microbatch per rank: "
                f"step {step.number} needs {need}; raise buffer_bytes to at least that"
            )


def pack(
    step: PendingStep, rank: int, microbatch: int, run: int, label: int, padded: Sequence[int] = ()
) -> ReadyBatch:
    """Return the message of a complete microbatch; `label` and `padded` as in DeliveryTracker."""
    samples = step.ranks[rank][microbatch].samples
    good = _usable(samples, step.holes)
    bad = [each for each in samples if each.reason] if step.holes else []
    if not step.weights:
        step.weights = _all_weights(step, label)
    handles, runs, frames = _payloads(good)
    message = Batch(
        run=run,
        rank=rank,
        step=step.number,
        microbatch=microbatch,
        microbatches=len(step.ranks[rank]),
        weights=step.weights[rank, microbatch],
        costs=_costs([sample.cost or () for sample in good], padded),
        after=step.after,
        items=tuple([BatchItem(s.ordinal, s.key, s.header) for s in good]),
        holes=tuple([Hole(s.ordinal, s.key, s.reason, s.source) for s in bad]),
        step_holes=tuple(sorted(step.holes)),
        handles=handles,
        servers=_servers(runs),
    )
    fatal = next((sample for sample in bad if sample.fatal), None)
    return ReadyBatch(message, frames, fatal, runs)


def _usable(samples: Sequence[Sample], holes: Collection[int]) -> Sequence[Sample]:
    """Return the samples that are no holes; `holes` are those of their step."""
    return [sample for sample in samples if not sample.reason] if holes else samples


def _servers(runs: Iterable[SharedRun]) -> tuple[PayloadServer, ...]:
    """Return whence payloads in these runs are pulled, those that are."""
    servers = {run.handle.token: run.server for run in runs if run.server is not None}
    return tuple(servers.values())


def _payloads(
    samples: Sequence[Sample],
) -> tuple[Handles, tuple[SharedRun, ...], tuple[object, ...]]:
    """Return where samples' payloads lie in workers' memory, in which runs, and those here."""
    payloads: list[Any] = [sample.payload for sample in samples]
    kinds = set(map(type, payloads))
    if SharedPayload not in kinds:
        return NO_HANDLES, (), tuple(payloads)
    if len(kinds) > 1:
        return _scattered(payloads)
    runs = tuple(dict.fromkeys(map(RUN, payloads)))
    numbers = {run: number for number, run in enumerate(runs)}
    run_of = tuple(map(numbers.__getitem__, map(RUN, payloads)))
    lengths = tuple(map(_NBYTES, payloads))
    return (
        Handles(tuple(map(_HANDLE, runs)), run_of, tuple(map(_OFFSET, payloads)), lengths),
        runs,
        (),
    )


def _scattered(
    payloads: Sequence[Any],
) -> tuple[Handles, tuple[SharedRun, ...], tuple[object, ...]]:
    """Return as `_payloads` where some are here, as where a worker's memory was full."""
    runs = tuple(dict.fromkeys([each.run for each in payloads if type(each) is SharedPayload]))
    numbers = {run: number for number, run in enumerate(runs)}
    places = [
        (numbers[each.run], each.offset, each.nbytes) if type(each) is SharedPayload else (-1, 0, 0)
        for each in payloads
    ]
    handles = Handles(tuple(map(_HANDLE, runs)), *zip(*places, strict=True))
    return handles, runs, tuple([each for each in payloads if type(each) is not SharedPayload])


def _microbatch(place: Place, samples: Sequence[Sample]) -> PendingMicrobatch:
    missing = 0
    for sample in samples:
        sample.place = place
        # What was not decoded yet, and is no hole, is missing: the others are asked.
        missing += not sample.settled or sample.is_missing
    return PendingMicrobatch(tuple(samples), missing)


def _costs(samples: Sequence[tuple[int, ...]], padded: Sequence[int]) -> tuple[int, ...]:
    """Return what a microbatch costs: sums, and count x largest of the resources in `padded`.

    >>> _costs([(5, 1), (3, 2)], padded=(0,))
    (10, 3)
    """
    columns = list(zip(*samples, strict=True))
    return tuple(
        len(values) * max(values) if k in padded else sum(values)
        for k, values in enumerate(columns)
    )


def _all_weights(step: PendingStep, label: int) -> dict[tuple[int, int], Weights]:
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
