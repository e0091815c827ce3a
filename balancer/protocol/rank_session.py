"""A rank's side of the protocol: which microbatches to ask for, and in which order to hand them on.

A rank takes microbatches strictly in order: step by step, within a step microbatch by microbatch,
within a microbatch rank by rank where one process plays several. It asks `prefetch` of them ahead.
How many microbatches a step has is known once the first of them has come.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from .messages import (
    Ack,
    Batch,
    Bye,
    EpochEnd,
    EpochPosition,
    Message,
    PeerRejected,
    Ping,
    Pong,
    RankHello,
    Ready,
    RequestBatch,
    RunFailed,
    StartRun,
    SubmitTask,
    UnknownPeer,
)
from .transitions import BEGIN, RANK, Outcome, RankAction

Position = tuple[int, int, int]
# The holes of so many steps are kept, for a balancer that has forgotten them.
KNOWN_STEPS = 32


@dataclass(frozen=True, slots=True)
class Arrival:
    """A microbatch that has arrived, with its payload frames."""

    batch: Batch
    payloads: tuple[object, ...]


class RankSession:
    """The state machine of a trainer process. Methods return the messages to send."""

    def __init__(
        self, ranks: tuple[int, ...], job: str, prefetch: int, microbatches: int = 0
    ) -> None:
        """`microbatches` is how many a step has, where that is known beforehand."""
        self.state = "joining"
        self.hello = RankHello(ranks, job)
        self.ranks = ranks
        self.prefetch = max(prefetch, 1) * len(ranks)
        self.ready: Ready | None = None
        self.status: Pong | None = None
        self.trouble = ""
        self.trouble_kind = ""
        self.dropped = 0
        self.left = False
        self.run = -1
        self.end: int | None = None
        self._known_count = microbatches or None
        self._counts: dict[int, int] = {}
        self._asked: dict[Position, bool] = {}
        self._arrived: dict[Position, Arrival] = {}
        self._begun: StartRun | None = None
        self._offered = False
        self._acks: dict[int, Ack] = {}
        self._returning: list[Message] = []
        self._came_back = False
        # How far all ranks of this process have got, and the holes of the step there.
        self.here = EpochPosition(0, 0, 0, 0)
        self.holes: tuple[int, ...] = ()
        # The holes of each step of which something has arrived.
        self._known: dict[int, tuple[int, ...]] = {}
        self._start = (0, 0)
        self._next: Position = (0, 0, 0)
        self._frontier: Position = (0, 0, 0)
        self.handlers = self._table()

    def _table(self) -> Mapping[RankAction, Callable[[Any], Outcome | None]]:
        """Return the handler of each action of the table."""
        return {
            RankAction.STORE_READY: self._note_ready,
            RankAction.STORE_BATCH: self._take_batch,
            RankAction.STORE_END: self._note_end,
            RankAction.STORE_STATUS: self._note_status,
            RankAction.RETURN: self._come_back,
            RankAction.FAIL: self._fail,
            RankAction.LEAVE: self._note_bye,
        }

    def handle(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Take in one message; what it changes is seen through `take`, `ready`, `trouble`."""
        row = RANK.get((self.state, type(message).__name__))
        if row is None:
            self.dropped += 1
            return
        if row.action != RankAction.RETURN:
            self._came_back = False
        arrival = Arrival(message, tuple(payloads)) if isinstance(message, Batch) else message
        outcome = self.handlers[row.action](arrival)
        self.state = row.after[outcome or Outcome.DONE]

    def begin(
        self, epoch: int, at: EpochPosition, holes: tuple[int, ...] = (), served: int = 0
    ) -> list[Message]:
        """Start the next run at a position.

        Inside a step, `holes` are the step's samples that could not be used, and `served` is how
        many of this process' ranks have had the microbatch there.
        """
        if (row := RANK.get((self.state, BEGIN))) is not None:
            self.state = row.after[Outcome.DONE]
        self.run += 1
        self.end = None
        self._counts.clear()
        self._asked.clear()
        self._arrived.clear()
        self._acks.clear()
        self._returning.clear()
        self._start = (at.step, at.microbatch)
        self._next = self._frontier = (*self._start, served)
        self.here, self.holes = at, holes
        self._known = {at.step: holes} if at.microbatch or served else {}
        self._begun = StartRun(self.run, epoch, at, holes=holes, known=tuple(self._known))
        for rank in self.ranks[:served]:
            self._acks[rank] = Ack(self.run, rank, at.step, at.microbatch)
        return [self._begun, *self._acks.values()]

    def offer(self, step: int, pickled: bytes, pin: int = -1) -> list[Message]:
        """Offer one batch of a loop without balancing."""
        self._offered = True
        return [SubmitTask(self.run, step, pin, pickled)]

    def asks(self) -> list[Message]:
        """Return the asks that may go out now; each is returned once."""
        if self.state != "running":
            return []
        new, self._returning = self._returning, []
        while len(self._asked) + len(self._arrived) < self.prefetch:
            position = self._skip_to_existing(self._frontier)
            if position is None or (self.end is not None and position[0] >= self.end):
                break
            self._asked[position] = True
            self._frontier = self._after(position)
            new.append(self._ask(position))
        return new

    def ask_again(self) -> list[Message]:
        """Return what is still unanswered, and a ping: for a peer that has been silent."""
        self._came_back = False
        again: list[Message] = [self.hello] if self.state == "joining" else []
        return [*again, Ping(), *self._open_business()]

    def take(self) -> tuple[Arrival, list[Message]] | None:
        """Return the next microbatch in order and its acknowledgement, if it has arrived."""
        position = self._skip_to_existing(self._next)
        arrival = self._arrived.pop(position, None) if position is not None else None
        if position is None or arrival is None:
            return None
        self._next = self._after(position)
        for step in [s for s in self._counts if s < position[0]]:
            del self._counts[step]
        batch = arrival.batch
        self._acks[batch.rank] = Ack(batch.run, batch.rank, batch.step, batch.microbatch)
        self._move(batch)
        return arrival, [self._acks[batch.rank]]

    def has_next(self) -> bool:
        """Whether `take` has something to give."""
        return self._skip_to_existing(self._next) in self._arrived

    def at_end(self) -> bool:
        """Whether the run has no further microbatch."""
        position = self._skip_to_existing(self._next)
        return self.end is not None and position is not None and position[0] >= self.end

    def _move(self, batch: Batch) -> None:
        """Note how far all ranks of this process have got."""
        self.holes = batch.step_holes
        if batch.rank != self.ranks[-1]:
            self.here = structs.replace(self.here, step=batch.step, microbatch=batch.microbatch)
        elif batch.microbatch + 1 < batch.microbatches:
            self.here = structs.replace(self.here, step=batch.step, microbatch=batch.microbatch + 1)
        else:
            self.here, self.holes = batch.after, ()

    def _open_business(self) -> list[Message]:
        """Return what the balancer may not have heard: what was taken, and what is asked for."""
        return [*self._acks.values(), *[self._ask(position) for position in sorted(self._asked)]]

    def _come_back(self, _: UnknownPeer) -> Outcome:
        """The balancer does not know us (any more): say again who and where we are, once."""
        if self._offered or self._begun is None:
            self.trouble_kind = "protocol"
            self.trouble = "this balancer does not know the rank (was it restarted?): start anew"
            return Outcome.REFUSED
        if not self._came_back:
            self._came_back = True
            holes = tuple(sorted({hole for each in self._known.values() for hole in each}))
            known = tuple(self._known)
            begun = structs.replace(self._begun, here=self.here, holes=holes, known=known)
            self._returning = [self.hello, begun, *self._open_business()]
        return Outcome.DONE

    def _ask(self, position: Position) -> RequestBatch:
        step, microbatch, index = position
        return RequestBatch(self.run, self.ranks[index], step, microbatch)

    def _after(self, position: Position) -> Position:
        step, microbatch, index = position
        if index + 1 < len(self.ranks):
            return step, microbatch, index + 1
        return step, microbatch + 1, 0

    def _skip_to_existing(self, position: Position) -> Position | None:
        """Move to the next step where this one is over; None while that is not known."""
        step, microbatch, _ = position
        # A run may begin inside a step: where it begins exists.
        if microbatch == 0 or (step, microbatch) == self._start:
            return position
        count = self._counts.get(step, self._known_count)
        if count is None:
            return None
        return position if microbatch < count else (step + 1, 0, 0)

    def _note_ready(self, message: Ready) -> None:
        self.ready = message

    def _take_batch(self, arrival: Arrival) -> None:
        batch = arrival.batch
        if batch.run != self.run or batch.rank not in self.ranks:
            return
        self._counts[batch.step] = batch.microbatches
        self._known[batch.step] = batch.step_holes
        if len(self._known) > KNOWN_STEPS:
            del self._known[min(self._known)]
        position = (batch.step, batch.microbatch, self.ranks.index(batch.rank))
        if self._asked.pop(position, False):
            self._arrived[position] = arrival

    def _note_end(self, message: EpochEnd) -> None:
        if message.run == self.run:
            self.end = message.steps
            self._asked = {p: True for p in self._asked if p[0] < message.steps}

    def _note_status(self, message: Pong) -> None:
        self.status = message

    def _note_bye(self, _: Bye) -> None:
        self.left = True

    def _fail(self, message: RunFailed | PeerRejected) -> None:
        self.trouble = message.reason
        self.trouble_kind = message.kind if isinstance(message, RunFailed) else "refused"
