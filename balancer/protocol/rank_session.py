"""A rank's side of the protocol: requests microbatches and returns them in order.

Sans-IO: messages in, messages out. A rank receives microbatches strictly in order: step by step,
within a step microbatch by microbatch, within a microbatch rank by rank where one process serves
several. It requests those of `prefetch` steps ahead, so that a trainer can take a whole step at
once. The number of microbatches in a step is known once the first of them has arrived.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from .messages import (
    BalancerStops,
    Bye,
    EpochEnd,
    LabelCount,
    LabelTotal,
    Message,
    Notice,
    PeerRejected,
    Ping,
    Pong,
    RankHello,
    RunFailed,
    StartRun,
    UnknownPeer,
    WorkersEnded,
)
from .parts import COUNTED_STEPS, EpochPosition, Ready
from .payload_messages import Ack, Batch, RequestBatch
from .transitions import BEGIN, RANK, Outcome, handlers_of

Position = tuple[int, int, int]
# More microbatches than these are not asked for ahead of need, however many a step has.
MOST_AHEAD = 256
# The holes of this many steps are kept, for a balancer that was restarted.
KNOWN_STEPS = 32


@dataclass(frozen=True, slots=True)
class Arrival:
    """A microbatch that has arrived, with its payload frames, or with all its payloads."""

    batch: Batch
    payloads: Collection[object]


class RankSession:
    """The state machine of a trainer process. Methods return the messages to send."""

    # Where the run starts, what is handed out next, and what is requested next.
    _start: tuple[int, int] = (0, 0)
    _next: Position = (0, 0, 0)
    _frontier: Position = (0, 0, 0)
    # Samples of the run that are in no step; known at its end.
    left_out = 0
    # Whether the balancer was asked to end, and no other has been heard from.
    awaits_restart = False
    # Why the run cannot continue.
    failure = ""
    dropped = 0
    # The number of the last ping that was answered.
    answered = 0
    ended: tuple[str, ...] = ()
    left = False
    # What the trainer has waited for microbatches, in all.
    waited_ms = 0.0
    _start_run: StartRun | None = None

    def __init__(
        self,
        ranks: tuple[int, ...],
        job: str,
        prefetch: int,
        microbatches: int = 0,
        sharer: int = 0,
        name: str = "",
    ) -> None:
        """`prefetch` counts steps, or microbatches where steps differ in how many they have.

        `microbatches` is their number in every step if that is known beforehand, else 0; `sharer`
        and `name` are those of RankHello.
        """
        self.state = "joining"
        self.hello = RankHello(ranks, job, sharer, max(prefetch, 1), name)
        self.ranks = ranks
        # How many microbatches are asked for ahead, of all ranks.
        ahead = max(prefetch, 1) * len(ranks)
        self.prefetch = max(ahead, min(ahead * microbatches, MOST_AHEAD))
        self.ready: Ready | None = None
        self.status: Pong | None = None
        self.run = -1
        self.end: int | None = None
        self._known_count = microbatches or None
        self._counts: dict[int, int] = {}
        self._requested: dict[Position, bool] = {}
        self._arrived: dict[Position, Arrival] = {}
        # The last acknowledgement of each rank.
        self._acks: dict[int, Ack] = {}
        self._reintroduction: list[Message] = []
        # What the log is to say.
        self.notices: list[str] = []
        # The label tokens that were counted here, and the totals of all ranks, by (run, step): of
        # runs before this one too, whose last step others may still be at.
        self._counted: dict[tuple[int, int], tuple[LabelCount, ...]] = {}
        self._totals: dict[tuple[int, int], int] = {}
        self._has_returned = False
        # The position that all ranks of this process have reached, and the holes of its step.
        self.here = EpochPosition(0, 0, 0, 0, "")
        self.holes: tuple[int, ...] = ()
        # The holes of each step of which something has arrived.
        self._known: dict[int, tuple[int, ...]] = {}
        self.handlers: dict[str, Callable[[Any], None]] = handlers_of(self, RANK)

    def handle(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Apply one message; read the effects from `take`, `ready`, `end` and `failure`."""
        row = RANK.get((self.state, type(message).__name__))
        if row is None:
            self.dropped += 1
            return
        if row.action != "return":
            self._has_returned = False
        self.awaits_restart = False
        arrival = Arrival(message, tuple(payloads)) if isinstance(message, Batch) else message
        self.handlers[row.action](arrival)
        self.state = row.after[Outcome.DONE]

    def begin(
        self,
        epoch: int,
        at: EpochPosition,
        holes: tuple[int, ...] = (),
        served: int = 0,
        costs: str = "",
        samples: int = -1,
    ) -> list[Message]:
        """Start the next run at a position.

        Inside a step, `holes` are the step's samples that could not be used, and `served` is how
        many of this process' ranks have received the microbatch there. `costs`, `samples`: as in
        StartRun; workers with another number of samples are not waited for.
        """
        if (row := RANK.get((self.state, BEGIN))) is not None:
            self.state = row.after[Outcome.DONE]
        self.run += 1
        self.end = None
        self._counts.clear()
        self._requested.clear()
        self._arrived.clear()
        self._acks.clear()
        self._reintroduction.clear()
        self._start = (at.step, at.microbatch)
        self._next = self._frontier = (*self._start, served)
        self.here, self.holes = at, holes
        self._known = {at.step: holes} if at.microbatch or served else {}
        known = tuple(self._known)
        self._start_run = StartRun(
            self.run, epoch, at, holes=holes, known=known, costs=costs, samples=samples
        )
        if self.ready is not None:
            self._store_ready(self.ready)
        for rank in self.ranks[:served]:
            self._acks[rank] = Ack(self.run, rank, at.step, at.microbatch)
        return [self._start_run, *self._acks.values()]

    def has_begun(self, epoch: int, at: EpochPosition, costs: str) -> bool:
        """Return whether the run was begun at this position, with these costs."""
        begun = self._start_run
        return begun is not None and (begun.epoch, begun.at, begun.costs) == (epoch, at, costs)

    def end_workers(self, names: tuple[str, ...]) -> list[Message]:
        """Report that this process has ended its workers; others are ready when `ready` is set.

        Until `ended` is emptied, because that was read, it is repeated over new connections.
        """
        self.ready, self.ended = None, self.ended + names
        return [WorkersEnded(names)]

    def new_requests(self) -> list[Message]:
        """Return the requests that may be sent now; each is returned once."""
        if self.state != "running":
            return []
        new, self._reintroduction = self._reintroduction, []
        while len(self._requested) + len(self._arrived) < self.prefetch:
            position = self._skip_to_existing(self._frontier)
            if position is None or (self.end is not None and position[0] >= self.end):
                break
            self._requested[position] = True
            self._frontier = self._after(position)
            new.append(self._request(position))
        return new

    def unanswered(self) -> list[Message]:
        """Return all unanswered messages and a ping, to repeat when the balancer is silent."""
        self._has_returned = False
        again: list[Message] = [self.hello] if self.state == "joining" else []
        return [*again, Ping(), *self._open_messages()]

    def reattach(self) -> list[Message]:
        """Return what a balancer must be told over a new connection."""
        ended = [WorkersEnded(self.ended)] if self.ended else []
        return [self.hello, *ended, *self._open_messages()]

    def peek(self) -> Arrival | None:
        """Return the next microbatch in order, if it has arrived; it stays the next."""
        position = self._skip_to_existing(self._next)
        return None if position is None else self._arrived.get(position)

    def release(self, arrival: Arrival) -> list[Message]:
        """Go on to the microbatch after this one; return what is to be sent for that.

        A trainer's signal may end this at any line, and it is called again: what is done before the
        last line may be done twice.
        """
        batch = arrival.batch
        position = self._position(batch)
        if batch.run != self.run or position < self._next:
            return []
        for step in [s for s in self._counts if s < batch.step]:
            self._counts.pop(step, None)
        ack = Ack(batch.run, batch.rank, batch.step, batch.microbatch, int(self.waited_ms))
        self._acks[batch.rank] = ack
        self._advance(batch)
        self._requested.pop(position, None)
        self._arrived.pop(position, None)
        self._next = self._after(position)
        return [ack, *self.new_requests()]

    def lose(self, arrival: Arrival) -> list[Message]:
        """Ask again for a microbatch that has arrived, and of which payloads cannot be pulled."""
        batch = arrival.batch
        position = self._position(batch)
        if batch.run != self.run or position not in self._arrived:
            return []
        # In this order: whenever it is interrupted, the microbatch is there or will be asked for.
        self._requested[position] = True
        del self._arrived[position]
        return [RequestBatch(self.run, batch.rank, batch.step, batch.microbatch, lost=True)]

    def batches(self) -> list[Batch]:
        """Return the microbatches that have arrived and are not released, first those used next."""
        return [self._arrived[position].batch for position in sorted(self._arrived)]

    def count_labels(self, step: int, tokens: Mapping[int, int]) -> Sequence[Message]:
        """Return what tells the balancer how many label tokens each rank here has in a step.

        A rank counts those of a whole step, and hands out nothing of it before the balancer has
        answered with the total. So it is at most one step ahead of another rank, and a balancer
        that was restarted needs the counts of two steps; processes that share a rank may be further
        apart.
        """
        sent = tuple(LabelCount(self.run, rank, step, found) for rank, found in tokens.items())
        self._counted[self.run, step] = sent
        while len(self._counted) > COUNTED_STEPS:
            oldest = min(self._counted)
            del self._counted[oldest]
            self._totals.pop(oldest, None)
        return sent

    def label_total(self, step: int) -> int | None:
        """Return the label tokens of a step on all ranks; None before the balancer's answer."""
        return self._totals.get((self.run, step))

    def at_end(self) -> bool:
        """Return True if the run has no further microbatch."""
        position = self._skip_to_existing(self._next)
        return self.end is not None and position is not None and position[0] >= self.end

    def _advance(self, batch: Batch) -> None:
        """Advance the position that all ranks of this process have reached."""
        self.holes = batch.step_holes
        if batch.rank != self.ranks[-1]:
            self.here = structs.replace(
                self.here, step=batch.step, microbatch=batch.microbatch, costs=batch.after.costs
            )
        elif batch.microbatch + 1 < batch.microbatches:
            self.here = structs.replace(
                self.here, step=batch.step, microbatch=batch.microbatch + 1, costs=batch.after.costs
            )
        else:
            self.here, self.holes = batch.after.reached(), ()

    def _open_messages(self, with_totals: bool = False) -> list[Message]:
        """Return acknowledgements, open requests and label counts that may not have arrived.

        Also the counts of steps whose total is known, for a new balancer, which has none.
        """
        totals = {} if with_totals else self._totals
        counts = [each for at, step in self._counted.items() if at not in totals for each in step]
        return [*self._acks.values(), *map(self._request, sorted(self._requested)), *counts]

    def _request(self, position: Position) -> RequestBatch:
        step, microbatch, index = position
        return RequestBatch(self.run, self.ranks[index], step, microbatch)

    def _return(self, _: UnknownPeer) -> None:
        """Introduce this process again, once: the balancer does not know it (any more)."""
        if self._start_run is not None and not self._has_returned:
            self._has_returned = True
            later = (each for each in self._start_run.holes if each >= self.here.start)
            holes = tuple(sorted({*later, *(o for each in self._known.values() for o in each)}))
            known = tuple(self._known)
            begun = structs.replace(self._start_run, here=self.here, holes=holes, known=known)
            if known and self.ready is not None:  # others would be planned otherwise
                begun = structs.replace(begun, samples=self.ready.count)
            self._start_run = structs.replace(self._start_run, samples=begun.samples)
            self._reintroduction = [self.hello, begun, *self._open_messages(with_totals=True)]

    def _position(self, batch: Batch) -> Position:
        return batch.step, batch.microbatch, self.ranks.index(batch.rank)

    def _after(self, position: Position) -> Position:
        step, microbatch, index = position
        if index + 1 < len(self.ranks):
            return step, microbatch, index + 1
        return step, microbatch + 1, 0

    def _skip_to_existing(self, position: Position) -> Position | None:
        """Return the position, or the next step if this one is over; None while that is unknown."""
        step, microbatch, _ = position
        # A run may start inside a step; the position where it starts exists.
        if microbatch == 0 or (step, microbatch) == self._start:
            return position
        count = self._counts.get(step, self._known_count)
        if count is None:
            return None
        return position if microbatch < count else (step + 1, 0, 0)

    def _store_ready(self, message: Ready) -> None:
        needed = -1 if self._start_run is None else self._start_run.samples
        self.ready = message if needed in (-1, message.count) else None

    def _store_batch(self, arrival: Arrival) -> None:
        batch = arrival.batch
        if batch.run != self.run or batch.rank not in self.ranks:
            return
        self._counts[batch.step] = batch.microbatches
        self._known[batch.step] = batch.step_holes
        if len(self._known) > KNOWN_STEPS:
            del self._known[min(self._known)]
        position = self._position(batch)
        # In this order: whenever it is interrupted, the microbatch is there or will be asked for.
        if position in self._requested:
            self._arrived[position] = arrival
            self._requested.pop(position, None)

    def _store_labels(self, message: LabelTotal) -> None:
        if (message.run, message.step) in self._counted:
            self._totals[message.run, message.step] = message.tokens

    def _store_end(self, message: EpochEnd) -> None:
        if message.run == self.run:
            self.end, self.left_out = message.steps, message.left_out
            self._requested = {p: True for p in self._requested if p[0] < message.steps}

    def _store_status(self, message: Pong) -> None:
        self.status, self.answered = message, max(self.answered, message.number)

    def _await_restart(self, _: BalancerStops) -> None:
        self.awaits_restart = True

    def _store_notice(self, message: Notice) -> None:
        self.notices.append(message.text)

    def _leave(self, _: Bye) -> None:
        self.left = True

    def _fail(self, message: RunFailed | PeerRejected) -> None:
        self.failure = message.reason
