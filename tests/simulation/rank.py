"""A process of a simulated trainer, and its ledger, with the fields that matter here.

It stands for loader/connect/remote.py and the training loop.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from msgspec import structs

from counterpoise.balancer.protocol.messages import Message
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.payload_messages import Batch
from counterpoise.balancer.protocol.rank_session import Arrival, RankSession
from tests.simulation.transport.pulls import SimulatedPuller

START = EpochPosition(0, 0, 0, 0, "")
Mark = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class SimulatedLedger:
    """The position of a process: an epoch, a place in it, ranks served there, holes so far.

    served: ranks of a process that plays several which have had the place's microbatch; holes:
    ordinals of the epoch's samples that could not be used, in the steps that were begun.
    """

    epoch: int = 0
    place: EpochPosition = START
    served: int = 0
    holes: tuple[int, ...] = ()

    @property
    def mark(self) -> Mark:
        """The next microbatch: epoch, step, microbatch, index of the rank in its process."""
        return self.epoch, self.place.step, self.place.microbatch, self.served

    @property
    def is_between_steps(self) -> bool:
        """Return whether nothing of a step has been taken."""
        return not self.place.microbatch and not self.served

    @property
    def holes_of_window(self) -> tuple[int, ...]:
        """Holes of the window that the place is in; windows before are not planned again."""
        return tuple(ordinal for ordinal in self.holes if ordinal >= self.place.start)

    def after(self, batch: Batch, ranks: tuple[int, ...]) -> "SimulatedLedger":
        """Return the ledger after one of a process' ranks has taken a microbatch."""
        new = tuple(ordinal for ordinal in batch.step_holes if ordinal not in self.holes)
        here = structs.replace(self.place, step=batch.step, costs=batch.after.costs)
        holes = self.holes + new
        if batch.rank != ranks[-1]:
            served = ranks.index(batch.rank) + 1
            return SimulatedLedger(
                self.epoch, structs.replace(here, microbatch=batch.microbatch), served, holes
            )
        if batch.microbatch + 1 == batch.microbatches:
            return SimulatedLedger(self.epoch, batch.after.reached(), 0, holes)
        return SimulatedLedger(
            self.epoch, structs.replace(here, microbatch=batch.microbatch + 1), 0, holes
        )


BEGINNING = SimulatedLedger()


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
    puller: SimulatedPuller | None = None

    @property
    def peer(self) -> bytes:
        """Its address."""
        return b"rank-%d-%d-%d" % (self.ranks[0], self.sharer, self.life)

    @property
    def party(self) -> str:
        """Its name in faults."""
        return party_name(self.ranks[0], self.sharer)

    def take(self) -> tuple[Arrival, list[Message]] | None:
        """Return the next microbatch with its payloads, and what to send for it, if it is there."""
        arrival = self.session.peek()
        if arrival is None:
            return None
        payloads: Collection[object] | None = arrival.payloads
        if self.puller is not None:
            if not self.puller.is_settled(arrival.batch):
                return None
            payloads = self.puller.read(arrival.batch, arrival.payloads)
        if payloads is None:
            self.send(self.session.lose(arrival))
            return None
        return Arrival(arrival.batch, payloads), self.session.release(arrival)

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
