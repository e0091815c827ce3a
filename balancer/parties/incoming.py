"""A microbatch on its way to a trainer: which of its pieces are here, to be pulled, or lost."""

from dataclasses import dataclass, field
from typing import Any

from .messages import GENERATION, GiveBatch, GivenPiece, LostPieces


@dataclass(slots=True, eq=False)
class IncomingBatch:
    """A microbatch that was announced; frames: of its pieces that are here, by their number.

    since: the version from which on pieces have the same samples. lost: pieces that could not be
    pulled, with why, and whether they were rubbish.
    """

    give: GiveBatch
    since: int
    frames: dict[int, Any] = field(default_factory=dict)
    lost: dict[int, tuple[str, bool]] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        """True if all pieces are here."""
        return len(self.frames) == len(self.give.pieces)


@dataclass(frozen=True, slots=True)
class PieceToPull:
    """A piece of a microbatch that is to be pulled from its worker."""

    rank: int
    index: int
    version: int
    number: int
    piece: GivenPiece


def is_alike(old: GiveBatch, new: GiveBatch) -> bool:
    """Return whether two versions of a microbatch have the same samples in their pieces."""
    cuts = [
        (give.version >> GENERATION, give.is_batch, [piece.places for piece in give.pieces])
        for give in (old, new)
    ]
    return cuts[0] == cuts[1]


def lost_of(batch: IncomingBatch) -> list[LostPieces]:
    """Return what tells the balancer of a microbatch's pieces that cannot be pulled."""
    give = batch.give
    return [
        LostPieces(
            give.run, give.rank, give.index, give.version,
            tuple(n for n, found in batch.lost.items() if found == why), *why,
        )
        for why in dict.fromkeys(batch.lost.values())
    ]  # fmt: skip
