"""A rank's microbatches on their way: who may have which, who has it, and when nobody needs it.

The processes that share a rank all get its microbatches, each by its own credit; the fastest is not
further ahead of the slowest than an allowance of steps. A ticket is free once all of them have it.
Numbers of microbatches count from where the run began, whoever plays it again, and from where.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..pool.tickets import Ticket
from ..run.arrivals import MicrobatchFacts
from ..run.tasks import Made
from .messages import GENERATION, EndRun, GiveBatch, GivenPiece

# What was sent this long ago, and is not said to be there, may be lost: it is sent again to who
# asks.
AGAIN_S = 1.0

Send = Callable[[bytes, GiveBatch | EndRun], None]


@dataclass(slots=True, eq=False)
class Taker:
    """A process as one of those who take a rank's microbatches.

    have: all before this number are there. upto: its credit. sent: all before were sent, the last
    of them at sent_at.
    """

    peer: bytes
    have: int
    upto: int = 0
    sent: int = 0
    sent_at: float = 0.0


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A microbatch that some process lacks; message: what was sent of its last version."""

    rank: int
    index: int
    facts: MicrobatchFacts
    made: Made
    lacking: int
    message: GiveBatch | None = None

    @property
    def ticket(self) -> Ticket | None:
        """What workers keep of it."""
        kept = self.made.batch
        return kept if isinstance(kept, Ticket) else None


class RankQueue:
    """What a rank was given of a run and some process lacks, in order.

    first: the number of the oldest; next: of the one to come. end: how many there are in the run,
    once that is known. A rank that nobody plays (any more) takes and frees whatever comes.
    """

    def __init__(self, rank: int, first: int, takers: dict[bytes, Taker], ahead_steps: int) -> None:
        self.rank = rank
        self.first = self.next = first
        self.takers = takers
        self.end: int | None = None
        self._left_out = 0
        self._upto = max((taker.have for taker in takers.values()), default=0)
        self._ahead_steps = ahead_steps
        self._queue: dict[int, QueuedBatch] = {}

    @property
    def wants_more(self) -> bool:
        """True if one more may be given."""
        if self.end is not None or not self.takers:
            return self.end is None
        return self._upto > self.next and (
            self.first == self.next or self._is_near(self._queue[self.next - 1])
        )

    @property
    def first_step(self) -> int:
        """The step of the oldest, -1 if there is none."""
        return self._queue[self.first].facts.step if self.first < self.next else -1

    def _is_near(self, batch: QueuedBatch) -> bool:
        """Return whether a microbatch may be sent: the slowest process is not too far behind."""
        return len(self.takers) < 2 or batch.facts.step < self.first_step + self._ahead_steps

    def add(self, facts: MicrobatchFacts, made: Made) -> QueuedBatch | None:
        """Add the next microbatch; None if nobody lacks it."""
        lacking = sum(taker.have <= self.next for taker in self.takers.values())
        batch = QueuedBatch(self.rank, self.next, facts, made, lacking)
        self.next += 1
        if not lacking:  # and nobody lacks one before it
            self.first = self.next
            return None
        self._queue[batch.index] = batch
        return batch

    def take(self, taker: Taker, upto: int, have: int) -> list[QueuedBatch]:
        """Take note of a process' credit, and of what it has; return what nobody lacks now."""
        taker.upto = max(taker.upto, upto)
        self._upto = max(self._upto, upto)
        before, taker.have = taker.have, max(taker.have, have)
        return self._count_off(before, taker.have)

    def drop(self, peer: bytes) -> list[QueuedBatch]:
        """Forget a process, which needs nothing more; return what nobody lacks now."""
        taker = self.takers.pop(peer)
        self._upto = max((each.upto for each in self.takers.values()), default=0)
        return self._count_off(taker.have, self.next)

    def _count_off(self, start: int, stop: int) -> list[QueuedBatch]:
        for index in range(max(start, self.first), min(stop, self.next)):
            self._queue[index].lacking -= 1
        unneeded = []
        while self.first < self.next and not self._queue[self.first].lacking:
            unneeded.append(self._queue.pop(self.first))
            self.first += 1
        return unneeded

    def clear(self) -> list[QueuedBatch]:
        """Forget all; return it."""
        queue, self._queue, self.first = self._queue, {}, self.next
        return list(queue.values())

    def finish(self, left_out: int) -> None:
        """Note that there are no more."""
        self.end, self._left_out = self.next, left_out

    # --- sending

    def send(self, taker: Taker, pack: Callable[[QueuedBatch], GiveBatch], send: Send,
             now: float) -> None:  # fmt: skip
        """Send a process what it may have, and was not sent."""
        taker.sent = max(taker.sent, taker.have)
        while taker.sent < min(taker.upto, self.next):
            batch = self._queue[taker.sent]
            if not self._is_near(batch) or not (batch.ticket is None or batch.ticket.is_there):
                return
            send(taker.peer, pack(batch))
            taker.sent += 1
            taker.sent_at = now

    def rewind(self, taker: Taker, run: int, send: Send, now: float) -> None:
        """Let what a process lacks, and was sent a while ago, be sent again, and the end."""
        if now < taker.sent_at + AGAIN_S:
            return
        taker.sent = taker.have
        if self.end is not None:
            taker.sent_at = now
            self.tell_end(taker, run, send)

    def tell_end(self, taker: Taker, run: int, send: Send) -> None:
        """Tell a process where the rank's run ends, once that is known."""
        if self.end is not None:
            send(taker.peer, EndRun(run, self.rank, self.end, self._left_out))

    def find(self, index: int) -> QueuedBatch | None:
        """Return a microbatch that some process lacks."""
        return self._queue.get(index)


def pack_batch(
    batch: QueuedBatch, run: int, generation: int, token_of: Callable[[bytes], int]
) -> GiveBatch:
    """Return what is sent of a microbatch; what was sent of this version of it is not made again.

    token_of: returns the token of the worker of a name.
    """
    ticket, facts, made = batch.ticket, batch.facts, batch.made
    version = (generation << GENERATION) + (0 if ticket is None else ticket.version)
    if batch.message is not None and batch.message.version == version:
        return batch.message
    batch.message = GiveBatch(
        run, batch.rank, batch.index, version,
        ticket is not None and ticket.is_batch,
        tuple(
            GivenPiece(token_of(piece.worker), piece.serial, piece.frames, piece.places)
            for piece in (() if ticket is None else ticket.pieces)
            if piece.worker is not None
        ),
        facts.step, facts.microbatch, facts.microbatches, facts.weights, facts.costs,
        facts.padding, facts.after, facts.keys, facts.holes, facts.step_holes,
        made.labels or (), -1 if made.label_tokens is None else made.label_tokens,
    )  # fmt: skip
    return batch.message
