"""A process of a simulated trainer: stands for loader/connect/remote.py and the training loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ...balancer.protocol.messages import Batch, Message
from ...balancer.protocol.rank_session import RankSession
from .ledger import SimulatedLedger

Deliver = Callable[..., None]


def party_name(rank: int, sharer: int) -> str:
    """Return the name in faults of a process, by its first rank and its number among sharers.

    >>> party_name(1, 0), party_name(1, 2)
    ('rank 1', 'rank 1, sharer 2')
    """
    return f"rank {rank}, sharer {sharer}" if sharer else f"rank {rank}"


def label_tokens(key: str) -> int:
    """Return the label tokens that collating a sample makes, in a simulation.

    >>> label_tokens("k23")
    2
    """
    return int(key[1:]) % 7


@dataclass(slots=True)
class RankProcess:
    """A trainer process that plays some ranks, as the first or another of those that share them."""

    ranks: tuple[int, ...]
    life: int
    session: RankSession
    ledger: SimulatedLedger
    deliver: Deliver
    sharer: int = 0
    begun: bool = False
    training: bool = False
    done: bool = False
    heard_at: float = 0.0
    slow_until: float = 0.0
    # Label tokens of the step's batches, by rank; whether the step's total is waited for.
    labels: dict[int, int] = field(default_factory=dict)
    counted: tuple[int, int] | None = None

    @property
    def peer(self) -> bytes:
        """Its address."""
        return b"rank-%d-%d-%d" % (self.ranks[0], self.sharer, self.life)

    @property
    def party(self) -> str:
        """Its name in faults."""
        return party_name(self.ranks[0], self.sharer)

    def send(self, messages: list[Message]) -> None:
        """Send messages to the balancer."""
        for message in messages:
            self.deliver(self.party, self.peer, message)

    def count_labels(self, batch: Batch) -> None:
        """Count a batch's label tokens; after a step's last batch, send those of the whole step."""
        here = sum(label_tokens(item.key) for item in batch.items)
        self.labels[batch.rank] = self.labels.get(batch.rank, 0) + here
        if batch.rank == self.ranks[-1] and batch.microbatch + 1 == batch.microbatches:
            self.send(list(self.session.count_labels(batch.step, self.labels)))
            self.labels, self.counted = {}, (self.ledger.epoch, batch.step)

    def begin(self) -> None:
        """Begin a run at the ledger's position."""
        self.begun, here = True, self.ledger
        self.send(self.session.begin(here.epoch, here.place, here.holes_of_window, here.served))
