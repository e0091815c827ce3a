"""Fetches an epoch's microbatches one by one, and keeps each until it has been handed out.

`next()` may raise at any moment: in a collate_fn, on a full disk, by Ctrl-C or another signal's
handler. A caller who goes on must get what was not returned. So the position of a loader moves by
one assignment, the last thing before `next()` returns, and everything up to there can be done
again: a microbatch is fetched *at* a position, and at the same position it is the same microbatch,
unpacked once. The source is told of it (`release`) when it is unpacked; until then it has it, too.

A StepInfo is complete before its step's first microbatch is handed out. Where label tokens are
known only when all of a step's batches are collated, all of the step are fetched, and the ranks'
counts added up. What comes out are the same microbatches at the same positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from ...balancer.protocol.parts import EpochPosition, Hole, Ready, Weights
from ...workers.batches.planned_reader import Made
from ..resume.balanced_position import ResumePosition, RunStart
from ..step.errors import LoaderError
from ..step.info import StepInfo

if TYPE_CHECKING:
    from ...balancer.protocol.rank_session import Arrival


@dataclass(frozen=True, slots=True)
class MicrobatchFacts:
    """What is known of a microbatch beside its batch, as Batch has it of one from a balancer."""

    rank: int
    step: int
    microbatch: int
    microbatches: int
    weights: Weights
    costs: tuple[int, ...]
    after: EpochPosition
    keys: tuple[str, ...] = ()
    holes: tuple[Hole, ...] = ()
    step_holes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalArrival:
    """A microbatch that a worker has made; made: None where it was handed over already."""

    batch: MicrobatchFacts
    made: Made | None = None


def without_payload(arrival: "Arrival | LocalArrival") -> "Arrival | LocalArrival":
    """Return an arrival whose samples are not needed any more."""
    if isinstance(arrival, LocalArrival):
        return replace(arrival, made=None)
    return replace(arrival, payloads=())


# A microbatch that cannot be unpacked is tried again at the next call; this often, errors are the
# caller's. After that the error says that it will not go away.
TRIES = 3
# Keys that an error names.
QUOTED = 8


class MicrobatchSource(Protocol):
    """The interface of LocalLoop, and of a Connection to a balancer.

    Every method may be interrupted by an exception, and called again.
    """

    @property
    def left_out(self) -> int:
        """The number of samples that were in no step of the run that has ended."""

    def wait_ready(self) -> Ready:
        """Wait until the job runs."""

    def begin(self, start: RunStart) -> None:
        """Start the next run, and its workers."""

    def go_on(self, start: RunStart, /) -> None:
        """Start the next run as `begin` does, with the workers of this one."""

    def recover(self, start: RunStart) -> None:
        """Go on with the run at a position, if an exception has left something half done."""

    def finish(self) -> None:
        """End the run's workers: its iterator is at its end, or was dropped."""

    def next(self, timeout_s: float | None = None) -> "Arrival | LocalArrival | None":
        """Return the next microbatch, the same until it is released; None at the end of the run."""

    def release(self, arrival: Any) -> None:
        """Release a microbatch, and ask for those after it; does nothing the second time."""

    def add_up_labels(
        self, step: int, tokens: Mapping[int, int], timeout_s: float | None = None, /
    ) -> int:
        """Return a step's label tokens on all ranks; `tokens` are those of each rank here."""

    def close(self) -> None:
        """Tell the balancer that this rank leaves."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A collated microbatch and its StepInfo."""

    batch: Any
    info: StepInfo


@dataclass(frozen=True, slots=True)
class Fetched:
    """A microbatch to be handed out, and the position after it."""

    delivered: Delivered
    after: ResumePosition


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A microbatch of which nothing can be handed out, and the position after it."""

    after: ResumePosition


@dataclass(slots=True)
class Kept:
    """A microbatch that was fetched at a position, until one is fetched at another.

    reported: how many of its holes are in the dead-letter file; failures: how often it could not be
    unpacked.
    """

    arrival: "Arrival | LocalArrival"
    at: ResumePosition
    reported: int = 0
    failures: int = 0
    unpacked: Fetched | PassedOver | None = None


class Fetcher:
    """Fetches at positions; what is fetched at one stays there however often it is asked for."""

    def __init__(
        self,
        receive: "Callable[[ResumePosition], Arrival | LocalArrival | None]",
        unpack: Callable[[Kept], Fetched | PassedOver],
        release: Callable[[Any], None],
    ) -> None:
        """`receive` returns the microbatch at a position, None at the end of the run.

        `unpack` makes of it what is handed out; `release` then lets go of it.
        """
        self._receive = receive
        self._unpack = unpack
        self._release = release
        self._kept: Kept | None = None

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run.

        Raises what `unpack` raises, and LoaderError when it has done so TRIES times.
        """
        kept = self._kept
        if kept is None or kept.at is not at:
            arrival = self._receive(at)
            kept = self._kept = None if arrival is None else Kept(arrival, at)
        if kept is None:
            return None
        unpacked = kept.unpacked
        if unpacked is None:
            unpacked = kept.unpacked = self._unpack_kept(kept)
            kept.arrival = without_payload(kept.arrival)
        self._release(kept.arrival)
        return unpacked

    def _unpack_kept(self, kept: Kept) -> Fetched | PassedOver:
        try:
            return self._unpack(kept)
        except LoaderError:
            raise
        except Exception as error:
            kept.failures += 1
            if kept.failures < TRIES:
                raise
            batch: Any = kept.arrival.batch
            raise LoaderError(
                f"microbatch {batch.microbatch} of step {batch.step} (samples "
                f"{', '.join(item.key for item in batch.items[:QUOTED])}) could not be made "
                f"{kept.failures} times, and comes again until it is: {type(error).__name__}: "
                f"{error}; mend collate_fn, or go on from a ledger beyond it"
            ) from error


Fetch = Callable[[ResumePosition], Fetched | PassedOver | None]
Place = tuple[int, int, int]


class CountedSteps:
    """Fetches at positions, as Fetcher does; infos have the label tokens of rank and step.

    What was fetched of a step is kept until another step is asked for: after an exception it goes
    on where it was.
    """

    def __init__(self, fetch: Fetch, add_up: Callable[[int, Mapping[int, int]], int]) -> None:
        """`fetch` returns the microbatch at a position.

        `add_up` takes a step and the label tokens of each rank here, and returns those of all.
        """
        self._fetch = fetch
        self._add_up = add_up
        # The position at which the step that is kept begins.
        self._first: ResumePosition | None = None
        self._parts: list[tuple[Place, Fetched]] = []
        self._counted: dict[Place, Fetched] = {}

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run."""
        if (found := self._counted.get(_place(at))) is not None:
            return found
        if self._first is None or at.place.step != self._first.place.step:
            self._first, self._parts, self._counted = beginning(at), [], {}
        here = self._parts[-1][1].after if self._parts else self._first
        while not self._parts or here.place.step == at.place.step:
            fetched = self._fetch(here)
            if fetched is None:
                return None
            if isinstance(fetched, Fetched):
                self._parts.append((_place(here), fetched))
            elif fetched.after.place.step != at.place.step:
                return fetched  # the whole step, on all ranks
            here = fetched.after
        self._counted = self._count(at.place.step)
        return self._counted[_place(at)]

    def _count(self, step: int) -> dict[Place, Fetched]:
        """Return the step's microbatches by position, with the label tokens of rank and step."""
        ranks: dict[int, int] = {}
        for _, part in self._parts:
            info = part.delivered.info
            ranks[info.rank] = ranks.get(info.rank, 0) + info.label_tokens
        total = self._add_up(step, ranks)
        return {place: _with_totals(part, ranks, total) for place, part in self._parts}


def beginning(at: ResumePosition) -> ResumePosition:
    """Return the position of a step's first microbatch; what was handed out of it comes again."""
    place = at.place
    if not place.microbatch and not at.served:
        return at
    return replace(at, place=structs.replace(place, microbatch=0), served=0)


def _with_totals(part: Fetched, ranks: Mapping[int, int], total: int) -> Fetched:
    info = part.delivered.info
    counted = replace(info, rank_label_tokens=ranks[info.rank], step_label_tokens=total)
    return Fetched(Delivered(part.delivered.batch, counted), part.after)


def _place(at: ResumePosition) -> Place:
    return at.place.step, at.place.microbatch, at.served
