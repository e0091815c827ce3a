"""A trainer process' side: it begins runs, asks for its ranks' microbatches, and has them in order.

Sans-IO: messages and what was pulled in; messages, and pieces to pull, out. Microbatches come in
order for each rank, and are handed out microbatch by microbatch, each rank's. What is not answered
is told again with each beat. A balancer that does not know this process asks it where it stands.

A signal of the trainer may end a method at any line, and it is called again: each changes what
counts by one assignment at its end; what comes before may happen twice.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import structs

from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..protocol.parts import COUNTED_STEPS, EpochPosition
from ..run.arrivals import RunStart
from .incoming import IncomingBatch, PieceToPull, is_alike, lost_of
from .messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    EndRun,
    FromTrainer,
    GiveBatch,
    JobReady,
    JoinJob,
    LabelSum,
    LeaveJob,
    RunBegun,
    RunStops,
    ToTrainer,
    TrainerBeat,
    WantBatches,
)  # fmt: skip

# The holes of this many steps are kept, for a balancer that was started again.
KNOWN_STEPS = 32
# Of small microbatches so many more are under way, as a message costs more than their bytes.
MOST_SMALL, SMALL_BYTES = 16, 8 << 20


class _Place(NamedTuple):
    """Where the process stands: all its ranks have had `had` microbatches, `served` one more."""

    had: int
    served: int
    here: EpochPosition


class _Rank:
    """A rank's microbatches by number; all before `have` are here. told: what was said of it."""

    def __init__(self, have: int) -> None:
        self.have = have
        self.batches: dict[int, IncomingBatch] = {}
        self.end: int | None = None
        self.told = (0, have)


class _Run:
    """The run that was begun; known: the holes of the last steps, by step."""

    def __init__(self, number: int, start: RunStart, ranks: tuple[int, ...]) -> None:
        self.number = number
        self.start = start
        self.place = _Place(0, start.served, start.at)
        is_inside = bool(start.at.microbatch or start.served)
        self.known = {start.at.step: start.holes} if is_inside else {}
        self.ranks = {rank: _Rank(int(place < start.served)) for place, rank in enumerate(ranks)}
        self.is_begun = False

    def message(self, samples: int) -> BeginRun:
        """Return what tells a balancer where this process stands; samples: in its data."""
        epoch, at, holes, _, costs, needed = self.start
        later = {ordinal for ordinal in holes if ordinal >= self.place.here.start}
        later.update(*self.known.values())
        had, served, here = self.place
        return BeginRun(
            self.number, epoch, at, costs, samples if self.known and samples >= 0 else needed,
            here, had, served, tuple(sorted(later)), tuple(self.known),
        )  # fmt: skip


class TrainerSession:
    """The state machine of a trainer process; `credit` microbatches of each rank are under way.

    Of small ones up to MOST_SMALL are, of SMALL_BYTES together.

    ready: the balancer's answer, when the job can run. failure: why the run cannot go on;
    comes_again: its batch comes again if the loop goes on. left_out: samples in no step of the run
    that has ended. waiting: the answer to the last beat that asked. answered: its number. has_left:
    the balancer needs this process no more.
    """

    def __init__(
        self, ranks: tuple[int, ...], job: str, layout: str, credit: int, sharer: int = 0,
        sharers: int = 1, incarnation: int = 0, name: str = "",
    ) -> None:  # fmt: skip
        self._hello = JoinJob(ranks, sharer, sharers, job, layout, incarnation, name)
        self._credit = self._credit_now = credit
        self._out: list[FromTrainer] = [self._hello]
        self._pulls: list[PieceToPull] = []
        self._run: _Run | None = None
        self._counted: dict[tuple[int, int], list[CountLabels]] = {}
        self._sums: dict[tuple[int, int], int] = {}
        self._unsummed = set[tuple[int, int]]()  # steps that this balancer has not added up yet
        self._has_rejoined = False  # since the last beat
        self._is_leaving = False
        self._beats = 0
        self.waited_ms = 0.0
        self.ready: JobReady | None = None
        self.failure, self.comes_again = "", False
        self.left_out = 0
        self.waiting, self.answered = "", 0
        self.has_left = False

    # --- messages

    def receive(self, message: ToTrainer) -> None:
        """Apply a message of the balancer."""
        run = self._run
        match message:
            case JobReady():
                self.ready = message
            case BeatBack():
                self.waiting, self.answered = message.waiting, max(self.answered, message.number)
            case UnknownPeer():
                self._rejoin()
            case PeerRejected():
                self.failure = message.reason
            case Bye():
                self.has_left = True
            case LabelSum():
                if (key := (message.run, message.step)) in self._counted:
                    self._sums[key] = message.tokens
                    self._unsummed.discard(key)
            case _:
                if run is not None and message.run == run.number:
                    self._apply(run, message)

    def _apply(self, run: _Run, message: RunBegun | GiveBatch | EndRun | RunStops) -> None:
        match message:
            case RunBegun():
                run.is_begun = True
                for rank in run.ranks.values():
                    rank.told = (0, rank.have)  # it may be played anew
            case GiveBatch() if message.rank in run.ranks:
                self._take(run, message)
            case EndRun() if message.rank in run.ranks:
                self.left_out = message.left_out
                run.ranks[message.rank].end = message.index
            case RunStops():
                self.failure, self.comes_again = message.reason, message.comes_again

    def take_messages(self, waits: bool = False) -> list[FromTrainer]:
        """Return what is to be sent; `waits`: also that a little more may come."""
        run = self._run
        if run is not None and run.is_begun and self._is_due(run, waits):
            self._out.append(self._wants(run))
        messages, self._out = self._out, []
        return messages

    def _is_due(self, run: _Run, waits: bool) -> bool:
        few = 1 if waits else max(1, self._credit_now // 2)
        for rank in run.ranks:
            upto, have = self._stand(run, rank)
            told = run.ranks[rank].told
            if upto >= told[0] + few or (waits and have > told[1]):
                return True
        return False

    def _stand(self, run: _Run, rank: int) -> tuple[int, int]:
        """Return a rank's credit, and how many of its microbatches are here."""
        return self._next_of(run, rank) + self._credit_now, run.ranks[rank].have

    def _next_of(self, run: _Run, rank: int) -> int:
        """Return the number of the microbatch of a rank that is handed out next."""
        return run.place.had + (self._hello.ranks.index(rank) < run.place.served)

    def _wants(self, run: _Run) -> WantBatches:
        stands = {rank: self._stand(run, rank) for rank in run.ranks}
        for rank, stand in stands.items():
            run.ranks[rank].told = stand
        wants = tuple((rank, *stand) for rank, stand in stands.items())
        return WantBatches(run.number, wants, int(self.waited_ms))

    def beat(self, asks: bool = False, clock_us: int = 0) -> list[FromTrainer]:
        """Return a sign of life, and what was not answered.

        asks: it waits, and asks for what. clock_us: its wall clock, for diagnostics.
        """
        self._beats, self._has_rejoined = self._beats + 1, False
        again: list[FromTrainer] = [TrainerBeat(self._beats, asks, clock_us)]
        if self._is_leaving:
            return [LeaveJob()]
        if self.ready is None:
            again.append(self._hello)
        run = self._run
        if run is not None and not self.failure:
            again.append(self._wants(run) if run.is_begun else self._begun(run))
            again.extend(count for key in self._unsummed for count in self._counted[key])
            for rank in run.ranks.values():
                for batch in rank.batches.values():
                    again.extend(lost_of(batch))
        return [*self.take_messages(), *again]

    def _rejoin(self) -> None:
        """Join again, once between two beats, at a balancer that does not know this process."""
        if self._has_rejoined or self._is_leaving:
            return
        self._has_rejoined = True
        self._out.append(self._hello)
        if self._run is not None:
            self._run.is_begun = False
            self._out.append(self._begun(self._run))
            # Others may need sums that are known here of a balancer that has them not.
            self._unsummed.update(self._counted)

    def leave(self) -> None:
        """Leave the job."""
        self._is_leaving = True
        self._out.append(LeaveJob())

    # --- runs

    def begin(self, start: RunStart) -> None:
        """Begin the next run, at a position."""
        number = 0 if self._run is None else self._run.number + 1
        run = _Run(number, start, self._hello.ranks)
        self._out.append(self._begun(run))
        self.failure, self.comes_again = "", False
        self._pulls = []
        self._run = run

    @property
    def run(self) -> int:
        """The number of the run that was begun last, -1 before."""
        return -1 if self._run is None else self._run.number

    @property
    def is_running(self) -> bool:
        """True if a run was begun."""
        return self._run is not None

    def has_begun(self, start: RunStart) -> bool:
        """Return whether the run was begun at this position, with these costs."""
        return self._run is not None and _key_of(self._run.start) == _key_of(start)

    def _begun(self, run: _Run) -> BeginRun:
        return run.message(-1 if self.ready is None else self.ready.count)

    # --- microbatches

    def _take(self, run: _Run, give: GiveBatch) -> None:
        rank = run.ranks[give.rank]
        _move_on(rank)  # what a signal has kept from doing so when the last piece came
        old = rank.batches.get(give.index)
        if give.index < rank.have or (
            old is not None and (old.is_here or old.give.version >= give.version)
        ):
            return
        batch, is_same = IncomingBatch(give, give.version), [False] * len(give.pieces)
        if old is not None and is_alike(old.give, give):  # of another cut all is pulled anew
            batch.since, batch.frames = old.since, old.frames
            is_same = [new == was for new, was in zip(give.pieces, old.give.pieces, strict=True)]
            batch.lost = {n: why for n, why in old.lost.items() if is_same[n]}
        self._pulls.extend(
            PieceToPull(give.rank, give.index, give.version, number, piece)
            for number, piece in enumerate(give.pieces)
            if number not in batch.frames and not is_same[number]
        )
        if nbytes := sum(sum(piece.frames) for piece in give.pieces):
            few = min(MOST_SMALL, SMALL_BYTES // nbytes, 2 * self._credit_now)
            self._credit_now = max(self._credit, few)
        run.known[give.step] = give.step_holes
        if len(run.known) > KNOWN_STEPS:
            del run.known[min(run.known)]
        rank.batches[give.index] = batch
        _move_on(rank)

    def batches(self) -> list[IncomingBatch]:
        """Return the microbatches that are here, and were not handed out."""
        run = self._run
        return [
            batch
            for rank, its in ({} if run is None else run.ranks).items()
            for index, batch in its.batches.items()
            if run is not None and batch.is_here and index >= self._next_of(run, rank)
        ]

    def take_pulls(self) -> list[PieceToPull]:
        """Return, once, the pieces that are to be pulled."""
        pulls, self._pulls = self._pulls, []
        return pulls

    def pull_again(self) -> None:
        """Have all pieces pulled that are not here, also those that were to be pulled before."""
        ranks = {} if self._run is None else self._run.ranks
        self._pulls = [
            PieceToPull(rank, index, batch.give.version, number, piece)
            for rank, each in ranks.items()
            for index, batch in each.batches.items()
            for number, piece in enumerate(batch.give.pieces)
            if number not in batch.frames and number not in batch.lost
        ]

    def lacks(self, rank: int, index: int, version: int) -> GiveBatch | None:
        """Return a microbatch that is not all here, if pieces of this version are of use for it."""
        batch = self._batch_of(rank, index, version)
        return None if batch is None else batch.give

    def note_pulled(self, rank: int, index: int, version: int, number: int, frames: Any) -> None:
        """Take a piece's frames: that of the version that was asked for, or of any of its kind."""
        batch = self._batch_of(rank, index, version)
        if batch is not None and self._run is not None:
            batch.frames[number] = frames
            batch.lost.pop(number, None)
            _move_on(self._run.ranks[rank])

    def note_lost(self, pull: PieceToPull, reason: str, is_rubbish: bool = False) -> None:
        """Take note that a piece cannot be pulled, to tell the balancer until it is here."""
        batch = self._batch_of(pull.rank, pull.index, pull.version)
        if batch is not None and batch.give.pieces[pull.number] == pull.piece:
            batch.lost[pull.number] = reason, is_rubbish
            self._out.extend(lost_of(batch))

    def _batch_of(self, rank: int, index: int, version: int) -> IncomingBatch | None:
        """Return a microbatch that is not all here, if its pieces are those of this version."""
        if self._run is None or rank not in self._run.ranks:
            return None
        batch = self._run.ranks[rank].batches.get(index)
        return None if batch is None or batch.is_here or version < batch.since else batch

    def peek(self) -> IncomingBatch | None:
        """Return the next microbatch, if all of it is here; it stays the next until released."""
        run = self._run
        if run is None or (rank := self._next_rank(run)).have <= (index := run.place.had):
            return None
        return rank.batches[index]

    @property
    def is_at_end(self) -> bool:
        """True if the run has no further microbatch."""
        run = self._run
        return run is not None and self._next_rank(run).end == run.place.had

    def _next_rank(self, run: _Run) -> _Rank:
        return run.ranks[self._hello.ranks[run.place.served]]

    def release(self, batch: IncomingBatch) -> None:
        """Go on to the microbatch after this one; does nothing the second time."""
        run, give = self._run, batch.give
        if run is None or self.peek() is not batch:
            return
        for rank, each in run.ranks.items():
            each.batches.pop(self._next_of(run, rank) - 1, None)
        had, served, here = run.place
        served += 1
        after = structs.replace(
            here, step=give.step, microbatch=give.microbatch, costs=give.after.costs
        )
        if served == len(run.ranks):
            had, served = had + 1, 0
            if give.microbatch + 1 < give.microbatches:
                after = structs.replace(after, microbatch=give.microbatch + 1)
            else:
                after = give.after.reached()
        run.place = _Place(had, served, after)

    # --- labels

    def count_labels(self, step: int, tokens: Mapping[int, int]) -> None:
        """Tell the label tokens of each rank here in a step of the run."""
        run = self._run
        if run is None:
            return
        counts = [CountLabels(run.number, rank, step, count) for rank, count in tokens.items()]
        self._out.extend(counts)
        self._counted[run.number, step] = counts
        self._unsummed.add((run.number, step))
        while len(self._counted) > COUNTED_STEPS:
            oldest = min(self._counted)
            del self._counted[oldest]
            self._sums.pop(oldest, None)
            self._unsummed.discard(oldest)

    def label_sum(self, step: int) -> int | None:
        """Return the label tokens of a step on all ranks; None before the balancer's answer."""
        return None if self._run is None else self._sums.get((self._run.number, step))


def _key_of(start: RunStart) -> tuple[int, EpochPosition, str]:
    return start.epoch, start.at, start.costs


def _move_on(rank: _Rank) -> None:
    while (batch := rank.batches.get(rank.have)) is not None and batch.is_here:
        rank.have += 1
