"""Build a row of a V-shaped schedule pass by pass, counting the microbatches of each stage."""

from collections import deque

from ..ir.program import Pass


class VRow:
    """The passes of a rank with an outer stage (chunk 0) and an inner one (chunk 1).

    Every added pass takes the stage's next microbatch; the W of an added I is pending.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)
        self.passes: list[Pass] = []
        self.pending: deque[Pass] = deque()
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
        self.pending.append(Pass(self.stages[chunk], "W", microbatch))

    def weights(self, chunk: int | None = None) -> None:
        """Add the W that has been pending longest (of that chunk), if any is."""
        for pass_ in self.pending:
            if chunk is None or pass_.stage == self.stages[chunk]:
                self.passes.append(pass_)
                self.pending.remove(pass_)
                return

    def count(self, kind: str, chunk: int) -> int:
        """Return the number of F or backwards of a chunk so far."""
        return self._next[kind][chunk]

    def _take(self, kind: str, chunk: int) -> int:
        self._next[kind][chunk] += 1
        return self._next[kind][chunk] - 1
