"""The label tokens of the last steps, as the trainer's processes count them, and their sums.

What a process has counted goes when it does, so that nothing is left of a former launch; one that
comes back counts again. A sum stays as long as one of those who were here when it was known: others
may come to the step later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from ..protocol.parts import COUNTED_STEPS
from .messages import CountLabels, LabelSum
from .seats import format_ranks

# Counts of ranks that have gone are waited for so long.
MISSING_S = 120.0


@dataclass(slots=True)
class _Step:
    """lacking: the ranks that have not counted. counts: of each other, by process.

    total: None until all are there. owners: who was here then; before, who has counted.
    """

    lacking: dict[int, None]
    counts: dict[int, dict[bytes, int]] = field(default_factory=dict)
    total: int | None = None
    owners: set[bytes] = field(default_factory=set)


class LabelSums:
    """The sums of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._steps: dict[tuple[int, int], _Step] = {}
        self._stuck_at: float | None = None

    def count(
        self, peer: bytes, message: CountLabels, here: Iterable[bytes]
    ) -> tuple[LabelSum, Iterable[bytes]] | None:
        """Take a count; return the step's sum and whom to tell it, None while counts are lacking.

        here: the processes that are here. Raises ValueError if another has counted otherwise.
        """
        key = message.run, message.step
        if (step := self._steps.get(key)) is None:
            step = self._steps[key] = _Step(dict.fromkeys(range(self._ranks)))
        counts = step.counts.setdefault(message.rank, {})
        if (other := next(iter(counts.values()), message.tokens)) != message.tokens:
            raise ValueError(
                f"processes that share rank {message.rank} count {message.tokens} and {other} "
                f"label tokens in its batches of step {message.step}: let collate_fn make the same "
                "batch of the same samples"
            )
        counts[peer] = message.tokens
        step.lacking.pop(message.rank, None)
        step.owners.add(peer)
        told: Iterable[bytes] = (peer,)
        if step.total is None and not step.lacking:
            step.total = sum(next(iter(counts.values())) for counts in step.counts.values())
            told, step.owners = step.owners, {*here}
        while len(self._steps) > COUNTED_STEPS:
            del self._steps[min(self._steps)]
        return None if step.total is None else (LabelSum(*key, step.total), told)

    def lacking(self, peer: bytes) -> str | None:
        """Return, as text, which counts the sum of a step lacks of which a process has sent one."""
        for (_, number), step in self._steps.items():
            if step.total is None and peer in step.owners:
                ranks = format_ranks(islice(step.lacking, 8))
                return f"the label tokens of step {number} from ranks {ranks}"
        return None

    def why_stuck(self, here: set[int], now: float) -> str:
        """Return why sums will never be known, "" while they may; here: ranks that are."""
        open_steps = (step for step in self._steps.values() if step.total is None)
        gone = {rank for step in open_steps for rank in step.lacking} - here
        self._stuck_at = (self._stuck_at or now) if gone else None
        if self._stuck_at is None or now <= self._stuck_at + MISSING_S:
            return ""
        return (
            f"ranks {format_ranks(islice(gone, 8))} have gone, and the others have waited "
            f"{MISSING_S:.0f} s for the label tokens that they have counted: restart all ranks "
            "from the last ledger"
        )

    def remove(self, peer: bytes, ranks: tuple[int, ...]) -> None:
        """Forget what a process with these ranks has counted, and sums that only concerned it."""
        for key, step in list(self._steps.items()):
            step.owners.discard(peer)
            for rank in ranks:
                counts = step.counts.get(rank, {})
                counts.pop(peer, None)
                if not counts:
                    step.counts.pop(rank, None)
                    step.lacking[rank] = None
            if not step.counts and not step.owners:
                del self._steps[key]
