"""Label tokens that a trainer process has counted in its batches, and the totals of all ranks."""

from collections.abc import Mapping

from .messages import LabelCount, LabelTotal, Message
from .parts import COUNTED_STEPS


class LabelCounts:
    """The label tokens that a process has counted in its batches, and the totals of all ranks.

    A rank counts those of a whole step, and hands out nothing of it before the balancer has
    answered with the total. So it is at most one step ahead of another rank, and a balancer that
    was restarted needs the counts of two steps; processes that share a rank may be further apart.
    """

    def __init__(self) -> None:
        # By (run, step): of runs before this one too, whose last step others may still be at.
        self._sent: dict[tuple[int, int], tuple[LabelCount, ...]] = {}
        self._totals: dict[tuple[int, int], int] = {}

    def count(self, run: int, step: int, tokens: Mapping[int, int]) -> tuple[Message, ...]:
        """Return what tells the balancer the label tokens of a step, by rank; it is kept."""
        sent = tuple(LabelCount(run, rank, step, found) for rank, found in tokens.items())
        self._sent[run, step] = sent
        while len(self._sent) > COUNTED_STEPS:
            oldest = min(self._sent)
            del self._sent[oldest]
            self._totals.pop(oldest, None)
        return sent

    def store(self, message: LabelTotal) -> None:
        """Store the total of a step that was counted here."""
        if (message.run, message.step) in self._sent:
            self._totals[message.run, message.step] = message.tokens

    def total(self, run: int, step: int) -> int | None:
        """Return the label tokens of a step on all ranks, None while that is not known."""
        return self._totals.get((run, step))

    def unanswered(self) -> list[Message]:
        """Return the counts of steps whose total is not known."""
        open_steps = (each for at, each in self._sent.items() if at not in self._totals)
        return [count for counts in open_steps for count in counts]

    def all(self) -> list[Message]:
        """Return all counts that are kept: a new balancer has none."""
        return [count for counts in self._sent.values() for count in counts]
