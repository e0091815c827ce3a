"""A run that is played: what each rank was given of it, and which processes lack what.

The processes that share a rank all get its microbatches, each by its own credit; a ticket is free
once all of them have it. The fastest is not ahead of the slowest by AHEAD_STEPS: it would be at the
end of a run, and well, when another has been killed.
Numbers of microbatches count from where the run first began, wherever it is played again from.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from ..pool.tickets import Ticket
from ..run.tasks import LoadedBatch, MicrobatchFacts, RunStart
from .messages import GENERATION, EndRun, GiveBatch, GivenPiece, LostPieces, RunBegun, ToTrainer
from .seats import RunKey, TrainerPeer

# What was sent so long ago, and is not said to be there, is sent again to who asks.
AGAIN_S = 1.0
AHEAD_STEPS = 2


@dataclass(slots=True, eq=False)
class Taker:
    """A process that takes a rank's microbatches: before number `have` all are there.

    upto: its credit. sent: all before were sent, the last of them at sent_at.
    """

    peer: bytes
    have: int
    upto: int
    sent: int = 0
    sent_at: float = 0.0


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A microbatch that some process lacks, as it was sent; ticket: what workers keep of it."""

    give: GiveBatch
    ticket: Ticket | None


class Lost(NamedTuple):
    """Pieces of a ticket that a process cannot pull, by number, and why, as in LostPieces."""

    ticket: Ticket
    peer: bytes
    message: LostPieces


@dataclass(slots=True, eq=False)
class RankQueue:
    """What a rank was given and some process lacks, by number.

    takers: its processes. first: the oldest number; next: the one to come. end: tells how many
    there are, once that is known.
    """

    rank: int
    takers: dict[bytes, Taker]
    first: int
    next: int
    batches: dict[int, QueuedBatch] = field(default_factory=dict)
    end: EndRun | None = None

    def is_near(self, index: int) -> bool:
        """Return whether a microbatch may be sent: no process is too far behind."""
        first, batch = self.batches[self.first].give.facts, self.batches[index].give.facts
        return len(self.takers) < 2 or batch.step < first.step + AHEAD_STEPS

    def is_over(self, have: int) -> bool:
        """Return whether who has so many has all of the run."""
        return self.end is not None and have >= self.next


class RunAttempt:
    """A run that is played from a position on, once: where it is played again is another attempt.

    key: what its processes have begun. known: steps whose holes among those of start are all.
    queues: of each rank. to_look_at: ranks that may want more since it was emptied.
    """

    def __init__(
        self, key: RunKey, ranks: int, playing: Iterable[TrainerPeer], generation: int,
        find_token: Callable[[bytes], int], send: Callable[[bytes, ToTrainer], None],
        free: Callable[[Ticket], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """Begin at the position of the process that is farthest behind.

        Raises ValueError if they need different data.
        """
        self._generation, self._find_token = generation, find_token
        self._send, self._free, self._clock = send, free, clock
        self._tickets: dict[int, QueuedBatch] = {}
        begun = [(t, t.begun) for t in playing if t.begun is not None]
        samples = {message.samples for _, message in begun if message.samples >= 0}
        if len(samples) > 1:
            numbers = " and ".join(map(str, sorted(samples)))
            raise ValueError(
                f"the ranks go on in data of {numbers} samples: resume all of them from one ledger"
            )
        _, least = min(begun, key=lambda pair: pair[1].had)
        holes = tuple(sorted({ordinal for _, message in begun for ordinal in message.holes}))
        count = max(samples, default=-1)
        self.key = key
        self.start = RunStart(least.epoch, least.here, holes, 0, least.costs, count)
        self.known = tuple(sorted({step for _, message in begun for step in message.known}))
        self.queues = [RankQueue(rank, {}, least.had, least.had) for rank in range(ranks)]
        self.to_look_at = dict.fromkeys(range(ranks))
        for trainer, message in begun:
            for place, rank in enumerate(trainer.hello.ranks):
                had = message.had + (place < message.served)
                self.queues[rank].takers[trainer.peer] = Taker(trainer.peer, had, had)
            send(trainer.peer, RunBegun(key.run))

    # --- what the caller has

    def wants_more(self, rank: int) -> bool:
        """Return whether a rank may be given one more; one without a process takes all."""
        queue = self.queues[rank]
        upto = max((taker.upto for taker in queue.takers.values()), default=math.inf)
        is_wanted = queue.end is None and queue.next < upto
        return is_wanted and (queue.first == queue.next or queue.is_near(queue.next - 1))

    def lacks(self, rank: int) -> bool:
        """Return whether a rank has nothing left of what it was given."""
        return self.queues[rank].first == self.queues[rank].next

    def give(self, facts: MicrobatchFacts, loaded: LoadedBatch) -> None:
        """Give a rank its next microbatch."""
        queue, tokens = self.queues[facts.rank], loaded.label_tokens
        ticket = loaded.batch if isinstance(loaded.batch, Ticket) else None
        give = GiveBatch(
            self.key.run, queue.next, self._make_version(None), True, (),
            -1 if ticket is None else ticket.first, facts, loaded.labels or (),
            -1 if tokens is None else tokens,
        )  # fmt: skip
        batch = queue.batches[queue.next] = QueuedBatch(give, ticket)
        queue.next += 1
        if ticket is not None:
            self._tickets[ticket.number] = batch
        self._send_due(queue, queue.takers.values())
        self._release(queue)

    def end(self, rank: int, left_out: int) -> None:
        """Tell a rank that it was given all; left_out: samples that are in no step."""
        queue = self.queues[rank]
        queue.end = EndRun(self.key.run, rank, queue.next, left_out)
        for peer in queue.takers:
            self._send(peer, queue.end)

    def renew(self, ticket: Ticket) -> None:
        """Tell those who lack it that a lost piece of a ticket was made again."""
        batch = self._tickets.get(ticket.number)
        if batch is not None and ticket.is_there:
            queue = self.queues[batch.give.facts.rank]
            for taker in queue.takers.values():
                taker.sent = min(taker.sent, batch.give.index)
            self._send_due(queue, queue.takers.values())

    def stop(self) -> None:
        """Free all."""
        for batch in self._tickets.values():
            if batch.ticket is not None:
                self._free(batch.ticket)

    # --- what processes say

    def take(self, peer: bytes, rank: int, upto: int, have: int) -> bool:
        """Take note of a process' credit, and of what it has; return whether that is more."""
        queue, now = self.queues[rank], self._clock()
        taker = queue.takers[peer]
        had, taker.have = taker.have, max(taker.have, have)
        taker.upto = max(taker.upto, upto)
        if now >= taker.sent_at + AGAIN_S:
            taker.sent = taker.have
            if queue.end is not None:
                taker.sent_at = now
                self._send(peer, queue.end)
        self._send_due(queue, [taker])
        self._release(queue)
        return taker.have > had

    def find_lost(self, peer: bytes, message: LostPieces) -> list[Lost]:
        """Return what a process lacks: nothing if it is elsewhere meanwhile, as that is told."""
        batch = self.queues[message.rank].batches.get(message.index)
        ticket = None if batch is None else batch.ticket
        if ticket is None or not ticket.is_there or message.version != self._make_version(ticket):
            return []
        are_known = max(message.pieces, default=0) < len(ticket.pieces)
        return [Lost(ticket, peer, message)] * are_known

    def drop(self, peer: bytes, ranks: Iterable[int]) -> None:
        """Forget a process, which needs nothing more."""
        for rank in ranks:
            queue = self.queues[rank]
            del queue.takers[peer]
            self._release(queue)
            self._send_due(queue, queue.takers.values())  # it may have held others back

    # --- sending and freeing

    def _send_due(self, queue: RankQueue, takers: Iterable[Taker]) -> None:
        """Send some processes what they may have, and were not sent."""
        for taker in takers:
            taker.sent = max(taker.sent, taker.have)
            while taker.sent < min(taker.upto, queue.next):
                batch = queue.batches[taker.sent]
                is_there = batch.ticket is None or batch.ticket.is_there
                if not is_there or not queue.is_near(taker.sent):
                    break
                self._send(taker.peer, self._pack(batch))
                taker.sent += 1
                taker.sent_at = self._clock()

    def _release(self, queue: RankQueue) -> None:
        """Free what no process lacks; look whether more is wanted."""
        needed = min((taker.have for taker in queue.takers.values()), default=queue.next)
        first, queue.first = queue.first, max(queue.first, min(needed, queue.next))
        for index in range(first, queue.first):
            if (ticket := queue.batches.pop(index).ticket) is not None:
                del self._tickets[ticket.number]
                self._free(ticket)
        if queue.first > first and len(queue.takers) > 1:  # others may have been held back
            self._send_due(queue, queue.takers.values())
        if self.wants_more(queue.rank):
            self.to_look_at[queue.rank] = None

    def _make_version(self, ticket: Ticket | None) -> int:
        return (self._generation << GENERATION) + (0 if ticket is None else 1 + ticket.version)

    def _pack(self, batch: QueuedBatch) -> GiveBatch:
        """Return what is sent of a microbatch of which all is there."""
        ticket, version = batch.ticket, self._make_version(batch.ticket)
        if ticket is not None and batch.give.version != version:
            pieces = tuple(
                GivenPiece(self._find_token(piece.worker), piece.serial, piece.frames, piece.places)
                for piece in ticket.pieces
                if piece.worker is not None
            )
            batch.give = structs.replace(
                batch.give, version=version, is_batch=ticket.is_batch, pieces=pieces
            )
        return batch.give
