"""A microbatch on its way to a trainer: which of its pieces are here, to be pulled, or lost."""

from dataclasses import dataclass, field
from typing import Any

from .messages import GENERATION, GiveBatch, GivenPiece, LostPieces


@dataclass(frozen=True, slots=True)
class PieceToPull:
    """A piece of a microbatch that is to be pulled from its worker."""

    rank: int
    index: int
    version: int
    number: int
    piece: GivenPiece


@dataclass(slots=True, eq=False)
class IncomingBatch:
    """A microbatch that was announced; frames: of its pieces that are here, by their number.

    since: the version from which on pieces have the same samples. lost: what the balancer is told
    of pieces that could not be pulled.
    """

    give: GiveBatch
    since: int
    frames: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, LostPieces] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        """True if all pieces are here."""
        return len(self.frames) == len(self.give.pieces)

    def find_pulls(self) -> list[PieceToPull]:
        """Return the pieces that are not here, and were not told to be lost."""
        give = self.give
        return [
            PieceToPull(give.facts.rank, give.index, give.version, number, piece)
            for number, piece in enumerate(give.pieces)
            if number not in self.frames and number not in self.lost
        ]

    def is_alike(self, give: GiveBatch) -> bool:
        """Return whether another version has the same samples in its pieces."""
        before, after = (
            (batch.version >> GENERATION, batch.is_batch, [piece.places for piece in batch.pieces])
            for batch in (self.give, give)
        )
        return before == after
