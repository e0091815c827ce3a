"""Divide the rows of a vocabulary weight over the pipeline ranks.

Every rank holds the same number of rows. The vocabulary is padded to a multiple of twice the number
of ranks, which keeps the shards' sizes even and their products aligned ("Balancing pipeline
parallelism with vocabulary parallelism", 2024, section 6.1). Padding rows are zero and stay zero.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sharding:
    """The rows of a weight of `size` rows, on `ranks` ranks.

    >>> [Sharding(10, 4).real(rank) for rank in range(4)]  # 16 rows with padding, 4 a rank
    [4, 4, 2, 0]
    """

    size: int
    ranks: int

    def __post_init__(self) -> None:
        """Raise ValueError for a vocabulary or a number of ranks below one."""
        if self.size < 1 or self.ranks < 1:
            raise ValueError(
                f"a vocabulary of {self.size} words on {self.ranks} ranks; give at least one each"
            )

    @property
    def rows(self) -> int:
        """Return the number of rows that every rank holds, padding included."""
        return 2 * -(-self.size // (2 * self.ranks))

    def start(self, rank: int) -> int:
        """Return the first row of a rank; it lies beyond the vocabulary if all are padding."""
        return rank * self.rows

    def real(self, rank: int) -> int:
        """Return the number of a rank's rows that are no padding."""
        return min(max(self.size - self.start(rank), 0), self.rows)
