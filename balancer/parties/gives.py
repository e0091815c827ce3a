"""A rank's microbatches on their way: who may have which, who has it, and when nobody needs it.

The processes that share a rank all get its microbatches, each by its own credit; the fastest is not
further ahead of the slowest than an allowance of steps. A ticket is free once all of them have it.
Numbers of microbatches count from where the run began, whoever plays it again, and from where.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..pool.tickets import Ticket
from ..run.arrivals import MicrobatchFacts
from ..run.tasks import Made
from .messages import GENERATION, EndRun, GiveBatch, GivenPiece, LostPieces

# What was sent this long ago, and is not said to be there, may be lost: it is sent again to who
# asks.
AGAIN_S = 1.0
# Microbatches of a rank under way, whatever credit a process says that it has.
MOST_CREDIT = 4096


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

    @property
    def is_there(self) -> bool:
        """True if no piece of it is being made again."""
        return self.ticket is None or self.ticket.is_there


class Lost(NamedTuple):
    """Pieces of a ticket that a process cannot pull, by number, and why, as in LostPieces."""

    ticket: Ticket
    peer: bytes
    message: LostPieces


class RankQueue:
    """What a rank was given of a run and some process lacks, in order.

    first: the number of the oldest; next: of the one to come. end: tells how many there are, once
    that is known. A rank that nobody plays (any more) takes and frees whatever comes.
    """

    def __init__(
        self, rank: int, first: int, takers: dict[bytes, Taker], ahead_steps: int,
        pack: Callable[[QueuedBatch], GiveBatch], send: Callable[[bytes, GiveBatch | EndRun], None],
    ) -> None:  # fmt: skip
        self.rank = rank
        self.first = self.next = first
        self.takers = takers
        self.end: EndRun | None = None
        self._upto = max((taker.have for taker in takers.values()), default=0)
        self._ahead_steps = ahead_steps
        self._pack, self._send = pack, send
        self._queue: dict[int, QueuedBatch] = {}

    @property
    def wants_more(self) -> bool:
        """True if one more may be given."""
        if self.end is not None or not self.takers:
            return self.end is None
        return self._upto > self.next and (
            self.first == self.next or self._is_near(self._queue[self.next - 1])
        )

    def _is_near(self, batch: QueuedBatch) -> bool:
        """Return whether a microbatch may be sent: the slowest process is not too far behind."""
        return len(self.takers) < 2 or batch.facts.step < self._first_step + self._ahead_steps

    @property
    def _first_step(self) -> int:
        return self._queue[self.first].facts.step if self.first < self.next else -1

    def give(self, facts: MicrobatchFacts, made: Made, now: float) -> QueuedBatch:
        """Add the next microbatch; lacking: how many processes are to get it."""
        lacking = sum(taker.have <= self.next for taker in self.takers.values())
        batch = QueuedBatch(self.rank, self.next, facts, made, lacking)
        self.next += 1
        if lacking:
            self._queue[batch.index] = batch
            self._send_on(self.takers.values(), now)
        else:  # and nobody lacks one before it
            self.first = self.next
        return batch

    def take(self, peer: bytes, upto: int, have: int, now: float) -> list[QueuedBatch]:
        """Take note of a process' credit, and of what it has; return what nobody lacks now."""
        taker, step, upto = self.takers[peer], self._first_step, min(upto, have + MOST_CREDIT)
        taker.upto = max(taker.upto, upto)
        self._upto = max(self._upto, upto)
        before, taker.have = taker.have, max(taker.have, have)
        unneeded = self._count_off(before, taker.have)
        if now >= taker.sent_at + AGAIN_S:
            self._rewind(taker, now)
        is_held = len(self.takers) > 1 and self._first_step != step
        self._send_on(self.takers.values() if is_held else [taker], now)
        return unneeded

    def drop(self, peer: bytes, now: float) -> list[QueuedBatch]:
        """Forget a process, which needs nothing more; return what nobody lacks now."""
        taker = self.takers.pop(peer)
        self._upto = max((each.upto for each in self.takers.values()), default=0)
        unneeded = self._count_off(taker.have, self.next)
        self._send_on(self.takers.values(), now)  # they may have been held back by it
        return unneeded

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

    def finish(self, run: int, left_out: int) -> None:
        """Tell all that there are no more."""
        self.end = EndRun(run, self.rank, self.next, left_out)
        for peer in self.takers:
            self._send(peer, self.end)

    # --- sending

    def _send_on(self, takers: Iterable[Taker], now: float) -> None:
        """Send some processes what they may have, and were not sent."""
        for taker in takers:
            taker.sent = max(taker.sent, taker.have)
            while taker.sent < min(taker.upto, self.next):
                batch = self._queue[taker.sent]
                if not self._is_near(batch) or not batch.is_there:
                    break
                self._send(taker.peer, self._pack(batch))
                taker.sent += 1
                taker.sent_at = now

    def _rewind(self, taker: Taker, now: float) -> None:
        """Let what a process lacks, and was sent a while ago, be sent again, and the end."""
        taker.sent = taker.have
        if self.end is not None:
            taker.sent_at = now
            self._send(taker.peer, self.end)

    def renew(self, batch: QueuedBatch, now: float) -> None:
        """Send a microbatch of which pieces were made again to those that lack it."""
        if batch.is_there:
            for taker in self.takers.values():
                if taker.have <= batch.index < taker.sent:
                    self._send(taker.peer, self._pack(batch))
            self._send_on(self.takers.values(), now)

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
        ticket is None or ticket.is_batch,
        tuple(
            GivenPiece(token_of(piece.worker), piece.serial, piece.frames, piece.places)
            for piece in (() if ticket is None else ticket.pieces)
            if piece.worker is not None
        ),
        -1 if ticket is None else ticket.first,
        facts.step, facts.microbatch, facts.microbatches, facts.weights, facts.costs,
        facts.padding, facts.after, facts.keys, facts.holes, facts.step_holes,
        made.labels or (), -1 if made.label_tokens is None else made.label_tokens,
    )  # fmt: skip
    return batch.message
