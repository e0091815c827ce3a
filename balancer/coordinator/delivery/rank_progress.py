"""The progress of each rank: the first microbatch that it may still need."""

from collections.abc import Iterable, Iterator

Position = tuple[int, int]
BEGINNING: Position = (0, 0)


class RankProgress:
    """The first (step, microbatch) that each rank may still need; it only moves on.

    >>> progress = RankProgress()
    >>> progress.move_on(0, (2, 1)); progress.move_on(0, (1, 0))
    >>> progress.needed([0]), progress.needed([0, 1])
    ((2, 1), (0, 0))
    """

    def __init__(self) -> None:
        self._next: dict[int, Position] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._next)

    def __getitem__(self, rank: int) -> Position:
        return self._next[rank]

    def move_on(self, rank: int, position: Position) -> None:
        """Record that a rank needs nothing before a position."""
        self._next[rank] = max(position, self._next.get(rank, BEGINNING))

    def needed(self, ranks: Iterable[int]) -> Position:
        """Return the first position that one of these ranks may still need."""
        return min(self._next.get(rank, BEGINNING) for rank in ranks)
