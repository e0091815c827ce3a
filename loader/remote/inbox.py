"""What a trainer is told by its balancer: applied to its session, pieces checked as they come."""

import time
from collections.abc import Sequence
from typing import Any

from ...balancer.job.messages import RelayedPiece, WorkersAt
from ...balancer.parties.incoming import PieceToPull
from ...balancer.parties.messages import GiveBatch, ToTrainer
from ...balancer.parties.trainer_session import TrainerSession
from ...balancer.protocol.messages import BalancerStops
from ...balancer.protocol.parts import PayloadServer
from ...balancer.protocol.records import ArrayRecord
from ...balancer.protocol.trace_messages import MICROSECONDS, StartTrace, TraceSpans
from ...balancer.server.spans import SpanRecorder
from ...workers.codec.contents import CodecError
from .batch_reader import BatchReader


class Inbox:
    """A trainer's session, and what of its messages is none of the session's: see RankSockets.

    servers: where workers are, by token. epoch: that of the run. awaits_restart: the balancer was
    stopped, and another is to come.
    """

    def __init__(self, session: TrainerSession, reader: BatchReader, name: str) -> None:
        self.session, self.reader, self.name = session, reader, name
        self.servers: dict[int, PayloadServer] = {}
        self.epoch, self.awaits_restart = 0, False
        self.trace, self._of_trace = RankTrace(), list[ArrayRecord]()

    @property
    def left(self) -> bool:
        """True if the balancer needs this process no more."""
        return self.session.has_left

    def reattach(self) -> Sequence[ArrayRecord]:
        """Return what a balancer is told over a new link."""
        return self.session.beat(asks=True)

    def take_messages(self, waits: bool = False) -> list[ArrayRecord]:
        """Return what is to be sent; waits: as in TrainerSession."""
        if (spans := self.trace.take(time.monotonic())) is not None:
            self._of_trace.append(spans)
        of_trace, self._of_trace = self._of_trace, []
        return [*of_trace, *self.session.take_messages(waits)]

    def handle(self, message: ArrayRecord, payloads: Sequence[Any] = ()) -> None:
        """Take a message of the balancer, and the frames behind it."""
        self.awaits_restart = isinstance(message, BalancerStops)
        match message:
            case WorkersAt():
                self.servers.update({server.token: server for server in message.servers})
            case RelayedPiece(rank=rank, index=index, version=version, piece=number):
                batch = self.session.lacks(rank, index, version)
                give = None if batch is None else batch.give
                # It may be late: of a run before, or of pieces that were made again.
                if give is not None and give.run == message.run and number < len(give.pieces):
                    pull = PieceToPull(rank, index, version, number, give.pieces[number])
                    self.take_piece(pull, give, payloads, "what the balancer has sent on")
            case StartTrace():
                self._of_trace.append(self.trace.begin(message))
            case _ if isinstance(message, ToTrainer):
                if isinstance(message, GiveBatch) and self.trace.until is not None:
                    self.trace.arrived(message)
                self.session.receive(message)

    def take_piece(self, pull: PieceToPull, give: GiveBatch, frames: Any, source: str) -> None:
        """Take a piece of a microbatch that lacks it; what cannot be one ends the run."""
        try:
            value = self.reader.read(give, pull.number, frames, self.epoch)
        except CodecError as error:
            self.session.failure = f"{source}: {error!s:.300}"
        else:
            self.session.note_pulled(pull.rank, pull.index, pull.version, pull.number, value)


class RankTrace(SpanRecorder):
    """What a rank records while a trace is taken: how batches come, are waited for, handed out."""

    def __init__(self) -> None:
        super().__init__()
        # When batches have arrived, by place, and when the last was ready to be unpacked.
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._ready = 0.0

    def begin(self, asked: StartTrace) -> TraceSpans:
        """Begin to record, unless that has begun; return the answer."""
        if self.until is None:
            self._arrived.clear()
            self._ready = 0.0
        return self.start(asked, time.monotonic(), round(MICROSECONDS * time.time()))

    def arrived(self, batch: GiveBatch) -> None:
        """Note that a microbatch has come; its payloads may have to be pulled."""
        self._arrived[_place(batch)] = time.monotonic()

    def ready(self, batch: GiveBatch, asked: float) -> None:
        """Record how a microbatch has come, and the wait for it since it was asked for."""
        self._ready, place = time.monotonic(), _place(batch)
        if (since := self._arrived.pop(place, None)) is not None:
            self.add("carry, until asked for", since, self._ready, place, [batch.first])
        self.add("wait", asked, self._ready, place)

    def released(self, batch: GiveBatch) -> None:
        """Record that a microbatch was unpacked and collated."""
        if self._ready:
            self.add("deliver", self._ready, time.monotonic(), _place(batch))


def _place(batch: GiveBatch) -> tuple[int, int, int]:
    return batch.facts.rank, batch.facts.step, batch.facts.microbatch
