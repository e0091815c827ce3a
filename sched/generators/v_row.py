"""A row of a V-shaped schedule under construction: it counts the microbatches by itself."""

from collections import deque

from ..ir.passes import Pass


class VRow:
    """The passes of a rank with an outer stage (chunk 0) and an inner one (chunk 1).

    Every pass added takes the stage's next microbatch; I leaves its W for later.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)
        self.passes: list[Pass] = []
        self.late: deque[Pass] = deque()
        self._next = {"F": [0, 0], "B": [0, 0]}

    def forward(self, chunk: int) -> None:
        """Add the chunk's next F."""
        self.passes.append(Pass(self.stages[chunk], "F", self._take("F", chunk)))

    def backward(self, chunk: int) -> None:
        """Add the chunk's next B."""
        self.passes.append(Pass(self.stages[chunk], "B", self._take("B", chunk)))

    def inputs(self, chunk: int) -> None:
        """Add the chunk's next I."""
        microbatch = self._take("B", chunk)
        self.passes.append(Pass(self.stages[chunk], "I", microbatch))
        self.late.append(Pass(self.stages[chunk], "W", microbatch))

    def weights(self, chunk: int | None = None) -> None:
        """Add the W that has waited longest (of that chunk), if one waits."""
        for item in self.late:
            if chunk is None or item.stage == self.stages[chunk]:
                self.passes.append(item)
                self.late.remove(item)
                return

    def count(self, kind: str, chunk: int) -> int:
        """How many F or backwards of a chunk there are so far."""
        return self._next[kind][chunk]

    def _take(self, kind: str, chunk: int) -> int:
        self._next[kind][chunk] += 1
        return self._next[kind][chunk] - 1
