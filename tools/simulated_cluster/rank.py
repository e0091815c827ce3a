"""A process of a simulated trainer: stands for loader/connect/remote.py and the training loop."""

from collections.abc import Callable
from dataclasses import dataclass

from ...balancer.protocol.messages import Message
from ...balancer.protocol.rank_session import RankSession
from .ledger import SimulatedLedger

Deliver = Callable[..., None]


@dataclass(slots=True)
class RankProcess:
    """A trainer process that plays some ranks."""

    ranks: tuple[int, ...]
    life: int
    session: RankSession
    ledger: SimulatedLedger
    deliver: Deliver
    begun: bool = False
    training: bool = False
    done: bool = False
    heard_at: float = 0.0
    slow_until: float = 0.0

    @property
    def peer(self) -> bytes:
        """Its address."""
        return b"rank-%d-%d" % (self.ranks[0], self.life)

    @property
    def party(self) -> str:
        """Its name in faults."""
        return f"rank {self.ranks[0]}"

    def send(self, messages: list[Message]) -> None:
        """Send messages to the balancer."""
        for message in messages:
            self.deliver(self.party, self.peer, message)

    def begin(self) -> None:
        """Begin a run at the ledger's position."""
        self.begun, here = True, self.ledger
        self.send(self.session.begin(here.epoch, here.place, here.holes_of_window, here.served))
