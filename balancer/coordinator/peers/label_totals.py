"""Adds up the label tokens that ranks have counted in their batches, step by step.

What a process has counted goes when the process does: after a restart of trainer or balancer
nothing is left of a former launch, and a process that comes back sends its counts again. A step's
total stays as long as one of the processes does that were here when it was known: those that have
counted may leave before others, which share a rank with them, come to the step.
"""

from collections.abc import Iterable

import msgspec

from ...protocol.messages import LabelCount, LabelTotal
from ...protocol.parts import COUNTED_STEPS

# (run, step).
StepOfRun = tuple[int, int]


class CountedStep(msgspec.Struct):
    """The label tokens of a step, by rank and process; the total, and who was here when it came."""

    counts: dict[int, dict[bytes, int]] = msgspec.field(default_factory=dict)
    total: int | None = None
    owners: set[bytes] = msgspec.field(default_factory=set)


class LabelTotals:
    """The label tokens of the last steps, as the trainer's processes count them."""

    def __init__(self) -> None:
        self._steps: dict[StepOfRun, CountedStep] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, peer: bytes, message: LabelCount) -> int | None:
        """Store a count; return what another process has for its rank, if it differs."""
        step = self._steps.setdefault((message.run, message.step), CountedStep())
        own = step.counts.setdefault(message.rank, {})
        own[peer] = message.tokens
        while len(self._steps) > COUNTED_STEPS:
            del self._steps[min(self._steps)]
        return next((other for other in own.values() if other != message.tokens), None)

    def settle(self, message: LabelCount, ranks: int, peers: Iterable[bytes]) -> bool:
        """Add up the counts of a step; return True when those of all ranks are there at last."""
        step = self._steps.get((message.run, message.step))
        if step is None or step.total is not None or len(step.counts) < ranks:
            return False
        step.total = sum(next(iter(each.values())) for each in step.counts.values())
        step.owners = set(peers)
        return True

    def answer(self, message: LabelCount) -> LabelTotal | None:
        """Return the answer to a count, None while the total is not known."""
        step = self._steps.get((message.run, message.step))
        if step is None or step.total is None:
            return None
        return LabelTotal(message.run, message.step, step.total)

    def who_counted(self, message: LabelCount) -> list[bytes]:
        """Return the processes that have counted the step of a message."""
        step = self._steps.get((message.run, message.step), CountedStep())
        return sorted({peer for each in step.counts.values() for peer in each})

    def waits_for(self, peer: bytes, run: int, ranks: int) -> tuple[int, list[int]] | None:
        """Return the step of which a process waits for the total, and the ranks that lack in it."""
        own = [
            at
            for at, step in self._steps.items()
            if at[0] == run and any(peer in each for each in step.counts.values())
        ]
        step = self._steps[max(own)] if own else CountedStep(total=0)
        if step.total is not None:
            return None
        return max(own)[1], [rank for rank in range(ranks) if rank not in step.counts]

    def remove(self, peer: bytes) -> None:
        """Forget what a process has counted, and totals that only concerned it."""
        for at, step in list(self._steps.items()):
            step.owners.discard(peer)
            for rank, each in list(step.counts.items()):
                each.pop(peer, None)
                if not each:
                    del step.counts[rank]
            if not step.counts and not step.owners:
                del self._steps[at]
