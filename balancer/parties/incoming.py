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


def replace_incoming(old: IncomingBatch | None, give: GiveBatch) -> IncomingBatch:
    """Return a microbatch at a newer version, with what is here of an older one."""
    if old is None or _cut_of(old.give) != _cut_of(give):  # of another cut all is pulled anew
        return IncomingBatch(give, give.version)
    return IncomingBatch(give, old.since, old.frames)


def _cut_of(give: GiveBatch) -> tuple[int, bool, list[tuple[int, ...]]]:
    """Return what is the same in versions with the same samples in their pieces."""
    return give.version >> GENERATION, give.is_batch, [piece.places for piece in give.pieces]
