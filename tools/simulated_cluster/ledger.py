"""The ledger of a simulated trainer: the fields of loader/resume/ledger.py that matter here."""

from dataclasses import dataclass

from msgspec import structs

from ...balancer.protocol.messages import Batch, EpochPosition

START = EpochPosition(0, 0, 0, 0)
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
        here, holes = structs.replace(self.place, step=batch.step), self.holes + new
        if batch.rank != ranks[-1]:
            served = ranks.index(batch.rank) + 1
            return SimulatedLedger(
                self.epoch, structs.replace(here, microbatch=batch.microbatch), served, holes
            )
        if batch.microbatch + 1 == batch.microbatches:
            return SimulatedLedger(self.epoch, batch.after, 0, holes)
        return SimulatedLedger(
            self.epoch, structs.replace(here, microbatch=batch.microbatch + 1), 0, holes
        )


BEGINNING = SimulatedLedger()
