"""What a trainer is told by its balancer: applied to its session, pieces checked as they come."""

import logging
from collections.abc import Sequence
from typing import Any

from ...balancer.job.messages import JobNotice, RelayedPiece, WorkersAt
from ...balancer.parties.incoming import PieceToPull
from ...balancer.parties.messages import FromTrainer, GiveBatch, ToTrainer
from ...balancer.parties.trainer_session import TrainerSession
from ...balancer.protocol.messages import BalancerStops
from ...balancer.protocol.parts import PayloadServer
from ...balancer.protocol.records import ArrayRecord
from ...workers.codec.fields import CodecError
from .batch_reader import BatchReader

logger = logging.getLogger(__name__)


class Inbox:
    """A trainer's session, and what of its messages is none of the session's: see RankSockets.

    servers: where workers are, by token. epoch: that of the run. awaits_restart: the balancer was
    stopped, and another is to come.
    """

    def __init__(self, session: TrainerSession, reader: BatchReader, name: str) -> None:
        self.session, self.reader, self.name = session, reader, name
        self.servers: dict[int, PayloadServer] = {}
        self.epoch = 0
        self.awaits_restart = False

    @property
    def left(self) -> bool:
        """True if the balancer needs this process no more."""
        return self.session.has_left

    def reattach(self) -> list[FromTrainer]:
        """Return what a balancer is told over a new link."""
        return self.session.beat(asks=True)

    def handle(self, message: ArrayRecord, payloads: Sequence[object] = ()) -> None:
        """Take a message of the balancer, and the frames behind it."""
        self.awaits_restart = isinstance(message, BalancerStops)
        match message:
            case WorkersAt():
                self.servers.update({server.token: server for server in message.servers})
            case RelayedPiece():
                self._take_relayed(message, payloads)
            case JobNotice():
                logger.warning("%s: %s", self.name, message.text)
            case _ if isinstance(message, ToTrainer):
                self.session.receive(message)

    def _take_relayed(self, relayed: RelayedPiece, frames: Sequence[Any]) -> None:
        rank, index, version, number = relayed.rank, relayed.index, relayed.version, relayed.piece
        give = self.session.lacks(rank, index, version)
        if give is not None and give.run == relayed.run and number < len(give.pieces):
            pull = PieceToPull(rank, index, version, number, give.pieces[number])
            self.take_piece(pull, give, frames, "what the balancer has sent on")

    def take_piece(
        self, pull: PieceToPull, give: GiveBatch, frames: Sequence[Any], source: str
    ) -> None:
        """Take a piece of a microbatch that it lacks; what is none is reported as rubbish."""
        try:
            value = self.reader.read(give, pull.number, frames, self.epoch)
        except CodecError as error:
            self.session.note_lost(pull, f"{source}: {error!s:.300}", is_rubbish=True)
        else:
            self.session.note_pulled(pull.rank, pull.index, pull.version, pull.number, value)
