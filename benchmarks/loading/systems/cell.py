"""A cell of the matrix: what all systems do beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass

CONSUMERS = ("touch", "read")
CELLS = (
    *((size, batch) for size in (1_000, 150_000, 602_112) for batch in (1, 32, 256)),
    *((3_000_000, batch) for batch in (1, 32)),
)
# A pass is this much, so that short ones are not all start and end.
_PASS_BYTES = 250_000_000
_MOST_BATCHES = 800
_LEAST_BATCHES = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison: bytes of a sample, samples of a batch, workers, what the consumer does.

    consumer: "touch" reads one byte of each batch, "read" all of them. balanced: whether ours is.
    """

    sample_bytes: int
    batch_size: int
    workers: int
    consumer: str
    balanced: bool = False

    @property
    def batches(self) -> int:
        """Batches of a pass."""
        fitting = _PASS_BYTES // (self.sample_bytes * self.batch_size)
        return max(_LEAST_BATCHES, min(_MOST_BATCHES, fitting))

    @property
    def worker_batches(self) -> int:
        """Batches of a pass from each worker, where workers have equal shares; rounded up."""
        return -(-self.batches // self.workers)


def cells(
    sizes: Sequence[tuple[int, int]],
    workers: Sequence[int],
    consumers: Sequence[str],
    balanced: bool = False,
) -> list[Cell]:
    """Return the matrix' cells, tables outermost."""
    return [
        Cell(size, batch, count, consumer, balanced)
        for consumer in consumers
        for count in workers
        for size, batch in sizes
    ]


def parse_cell(text: str) -> tuple[int, int]:
    """Return (bytes of a sample, a multiple of 8, and batch size); ValueError for other text.

    >>> parse_cell("150000x32")
    (150000, 32)
    """
    size, _, batch = text.partition("x")
    numbers = size.isdecimal() and batch.isdecimal() and int(size) and int(batch)
    if not numbers or int(size) % 8:
        raise ValueError(f"a cell is BYTESxBATCH, bytes in eights, as 150000x32; got {text!r}")
    return int(size), int(batch)
