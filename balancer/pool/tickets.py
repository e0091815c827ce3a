"""What a pool's workers keep for ranks: where the pieces of a microbatch are."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KeptPiece:
    """What one worker keeps of a microbatch: places are those of its samples in the microbatch.

    worker: its name, None while it is made again. frames: the bytes of each frame.
    """

    places: tuple[int, ...]
    worker: bytes | None = None
    serial: int = 0
    nbytes: int = 0
    frames: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """A microbatch that workers keep: LoadedBatch.batch of a run whose workers are elsewhere.

    is_batch: its one piece is a batch; else the pieces are samples, which a trainer collates.
    first: the index of its first sample in the source, -1 for none.
    version: grows when a piece was lost and made again. Its holder frees it, once.
    """

    number: int
    is_batch: bool
    pieces: Sequence[KeptPiece] = ()
    first: int = -1
    version: int = 0
    is_free: bool = False

    @property
    def is_there(self) -> bool:
        """True if no piece is being made again."""
        return all(piece.worker is not None for piece in self.pieces)
