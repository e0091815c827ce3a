"""A trainer process' side: it begins runs, asks for its ranks' microbatches, and has them in order.

Sans-IO: messages and what was pulled in; messages, and pieces to pull, out. Microbatches come in
order for each rank, and are handed out microbatch by microbatch, each rank's. What is not answered
is told again with each beat. A balancer that does not know this process asks it where it stands.

A signal of the trainer may end a method at any line, and it is called again: each changes what
counts by one assignment at its end; what comes before may happen twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import structs

from ..protocol.messages import Bye, PeerRejected, UnknownPeer
from ..protocol.parts import COUNTED_STEPS, EpochPosition, Ready
from ..run.tasks import RunStart
from .incoming import IncomingBatch, PieceToPull
from .messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    EndRun,
    FromTrainer,
    GiveBatch,
    JoinJob,
    LabelSum,
    LeaveJob,
    LostPieces,
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


@dataclass(slots=True)
class _Rank:
    """A rank's microbatches by number, those before `have` are here; end: how many there are."""

    have: int
    batches: dict[int, IncomingBatch] = field(default_factory=dict)
    end: int | None = None

    def advance(self) -> None:
        """Count those that are here."""
        while (batch := self.batches.get(self.have)) is not None and batch.is_here:
            self.have += 1


class _Run:
    """The run that was begun.

    known: the holes of the last steps, by step. last_wants: what of each rank the balancer was told
    last, as in WantBatches; empty before the run has begun at the balancer.
    """

    def __init__(self, number: int, start: RunStart, ranks: tuple[int, ...]) -> None:
        self.number, self.start = number, start
        self.place = _Place(0, start.served, start.at)
        is_inside = bool(start.at.microbatch or start.served)
        self.known = {start.at.step: start.holes} if is_inside else {}
        self.ranks = {rank: _Rank(int(place < start.served)) for place, rank in enumerate(ranks)}
        self.last_wants: tuple[tuple[int, int, int], ...] = ()

    def nexts(self) -> list[tuple[int, int, _Rank]]:
        """Return of each rank the number of the microbatch that is handed out next."""
        had, served, _ = self.place
        ranks = enumerate(self.ranks.items())
        return [(rank, had + (place < served), batches) for place, (rank, batches) in ranks]


@dataclass(slots=True)
class _CountedStep:
    """Label tokens of a step, and the sum, if known; is_due: this balancer has not told it."""

    counts: list[CountLabels]
    is_due: bool = True
    total: int | None = None


class TrainerSession:
    """The state machine of a trainer process; `credit` microbatches of each rank are under way.

    ready: the balancer's answer, when the job can run. failure: why the run cannot go on;
    comes_again: its batch comes again if the loop goes on. left_out: samples in no step of the run
    that has ended. waiting: the answer to the last beat that asked. has_left: the balancer needs
    this process no more.
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
        self._counted: dict[tuple[int, int], _CountedStep] = {}
        self._has_rejoined = False  # since the last beat
        self._is_leaving = False
        self._beats = 0
        self.waited_ms = 0.0
        self.ready: Ready | None = None
        self.failure, self.comes_again = "", False
        self.left_out, self.waiting, self.has_left = 0, "", False

    # --- messages

    def receive(self, message: ToTrainer) -> None:
        """Apply a message of the balancer."""
        run = self._run
        match message:
            case Ready():
                self.ready = message
            case BeatBack():
                self.waiting = message.waiting or self.waiting  # "": it was not asked
            case UnknownPeer():
                self._rejoin()
            case PeerRejected():
                self.failure = message.reason
            case Bye():
                self.has_left = True
            case LabelSum():
                if (step := self._counted.get((message.run, message.step))) is not None:
                    step.total, step.is_due = message.tokens, False
            case _ if run is None or message.run != run.number:
                pass
            case RunBegun():  # it may be played anew
                run.last_wants = tuple((rank, 0, its.have) for rank, its in run.ranks.items())
            case GiveBatch() if message.facts.rank in run.ranks:
                self._take(run, message)
            case EndRun() if message.rank in run.ranks:
                self.left_out = message.left_out
                run.ranks[message.rank].end = message.index
            case RunStops():
                self.failure, self.comes_again = message.reason, message.comes_again

    def take_messages(self, waits: bool = False) -> list[FromTrainer]:
        """Return what is to be sent; `waits`: also that a little more may come."""
        if (run := self._run) is not None and run.last_wants:
            wants, few = self._wants(run), 1 if waits else max(1, self._credit_now // 2)
            pairs = zip(wants, run.last_wants, strict=True)
            if any(
                upto >= last_upto + few or (waits and have > last_have)
                for (_, upto, have), (_, last_upto, last_have) in pairs
            ):
                self._out.append(self._want(run))
        messages, self._out = self._out, []
        return messages

    def _wants(self, run: _Run) -> tuple[tuple[int, int, int], ...]:
        credit = self._credit_now
        return tuple([(rank, first + credit, its.have) for rank, first, its in run.nexts()])

    def _want(self, run: _Run) -> WantBatches:
        run.last_wants = self._wants(run)
        return WantBatches(run.number, run.last_wants, int(self.waited_ms))

    def beat(self, asks: bool = False) -> list[FromTrainer]:
        """Return a sign of life, and what was not answered; asks: it waits, and asks for what."""
        self._beats, self._has_rejoined = self._beats + 1, False
        again: list[FromTrainer] = [TrainerBeat(self._beats, asks)]
        if self._is_leaving:
            return [LeaveJob()]
        if self.ready is None:  # the hello may be lost
            again.append(self._hello)
        run = self._run
        if run is not None and not self.failure:
            again.append(self._want(run) if run.last_wants else self._stand(run))
            for step in self._counted.values():
                again.extend(step.counts if step.is_due else ())
            for rank in run.ranks.values():
                for batch in rank.batches.values():
                    again.extend(batch.lost.values())
        return [*self.take_messages(), *again]

    def _rejoin(self) -> None:
        """Join again, once between two beats, at a balancer that does not know this process."""
        if self._has_rejoined or self._is_leaving:
            return
        self._has_rejoined = True
        self._out.append(self._hello)
        if self._run is not None:
            self._run.last_wants = ()
            self._out.append(self._stand(self._run))
            # Others may need sums that are known here of a balancer that has them not.
            for step in self._counted.values():
                step.is_due = True

    def leave(self) -> None:
        """Leave the job."""
        self._is_leaving = True
        self._out.append(LeaveJob())

    # --- runs

    def begin(self, start: RunStart) -> None:
        """Begin the next run, at a position."""
        run = _Run(self.run + 1, start, self._hello.ranks)
        self._out.append(self._stand(run))
        self.failure, self.comes_again = "", False
        self._pulls = []
        self._run = run

    @property
    def run(self) -> int:
        """The number of the run that was begun last, -1 before."""
        return -1 if self._run is None else self._run.number

    def has_begun(self, start: RunStart) -> bool:
        """Return whether the run was begun at this position, with these costs."""
        begun = None if self._run is None else self._run.start
        position = start.epoch, start.at, start.costs
        return begun is not None and position == (begun.epoch, begun.at, begun.costs)

    def _stand(self, run: _Run) -> BeginRun:
        """Return what tells a balancer where this process stands."""
        epoch, at, holes, _, costs, samples, _ = run.start
        if run.known and self.ready is not None and self.ready.count >= 0:
            samples = self.ready.count
        had, served, here = run.place
        later = {ordinal for ordinal in holes if ordinal >= here.start}
        later.update(*run.known.values())
        return BeginRun(
            run.number, epoch, at, costs, samples, here, had, served, tuple(sorted(later)),
            tuple(run.known),
        )  # fmt: skip

    # --- microbatches

    def _take(self, run: _Run, give: GiveBatch) -> None:
        rank = run.ranks[give.facts.rank]
        rank.advance()  # what a signal has kept from doing so when the last piece came
        old = rank.batches.get(give.index)
        if give.index < rank.have or (
            old is not None and (old.is_here or old.give.version >= give.version)
        ):
            return
        batch = IncomingBatch(give, give.version)
        if old is not None and old.is_alike(give):
            batch.since, batch.frames = old.since, old.frames
        self._pulls.extend(batch.find_pulls())
        if nbytes := sum(sum(piece.frames) for piece in give.pieces):
            few = min(MOST_SMALL, SMALL_BYTES // nbytes, 2 * self._credit_now)
            self._credit_now = max(self._credit, few)
        run.known[give.facts.step] = give.facts.step_holes
        if len(run.known) > KNOWN_STEPS:
            del run.known[min(run.known)]
        rank.batches[give.index] = batch
        rank.advance()

    @property
    def ready_batches(self) -> int:
        """How many microbatches are here that were not handed out."""
        nexts = [] if self._run is None else self._run.nexts()
        return sum(rank.have - first for _, first, rank in nexts)

    def take_pulls(self) -> list[PieceToPull]:
        """Return, once, the pieces that are to be pulled."""
        pulls, self._pulls = self._pulls, []
        return pulls

    def pull_again(self) -> None:
        """Have all pieces pulled that are not here, also those that were to be pulled before."""
        ranks = [] if self._run is None else self._run.ranks.values()
        batches = [batch for rank in ranks for batch in rank.batches.values()]
        self._pulls = [pull for batch in batches for pull in batch.find_pulls()]

    def lacks(self, rank: int, index: int, version: int) -> IncomingBatch | None:
        """Return a microbatch that is not all here, if pieces of this version are of use for it."""
        if self._run is None or rank not in self._run.ranks:
            return None
        batch = self._run.ranks[rank].batches.get(index)
        return None if batch is None or batch.is_here or version < batch.since else batch

    def note_pulled(self, rank: int, index: int, version: int, number: int, frames: Any) -> None:
        """Take a piece's frames: that of the version that was asked for, or of any of its kind."""
        batch = self.lacks(rank, index, version)
        if batch is not None and self._run is not None:
            batch.frames[number] = frames
            batch.lost.pop(number, None)
            self._run.ranks[rank].advance()

    def note_lost(self, pull: PieceToPull, reason: str) -> None:
        """Take note that a piece cannot be pulled, to tell the balancer until it is here."""
        batch, number = self.lacks(pull.rank, pull.index, pull.version), pull.number
        if batch is None or number in batch.frames or batch.give.pieces[number] != pull.piece:
            return
        give = batch.give
        lost = LostPieces(give.run, pull.rank, give.index, give.version, (number,), reason)
        self._out.append(lost)
        batch.lost[number] = lost

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
        run, facts = self._run, batch.give.facts
        if run is None or self.peek() is not batch:
            return
        for _, first, rank in run.nexts():
            rank.batches.pop(first - 1, None)
        had, served, here = run.place
        served += 1
        after = structs.replace(
            here, step=facts.step, microbatch=facts.microbatch, costs=facts.after.costs
        )
        if served == len(run.ranks):
            had, served = had + 1, 0
            if facts.microbatch + 1 < facts.microbatches:
                after = structs.replace(after, microbatch=facts.microbatch + 1)
            else:
                after = facts.after.reached()
        run.place = _Place(had, served, after)

    # --- labels

    def count_labels(self, step: int, tokens: Mapping[int, int]) -> None:
        """Tell the label tokens of each rank here in a step of the run."""
        counts = [CountLabels(self.run, rank, step, count) for rank, count in tokens.items()]
        self._out.extend(counts)
        self._counted[self.run, step] = _CountedStep(counts)
        while len(self._counted) > COUNTED_STEPS:
            del self._counted[min(self._counted)]

    def label_sum(self, step: int) -> int | None:
        """Return the label tokens of a step on all ranks; None before the balancer's answer."""
        counted = self._counted.get((self.run, step))
        return None if counted is None else counted.total
