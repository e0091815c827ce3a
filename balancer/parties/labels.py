"""The label tokens of the last steps, as the trainer's processes count them, and their sums.

What a process has counted goes when it does, so that nothing is left of a former launch; one that
comes back counts again. A sum stays as long as one of those who were here when it was known: others
may come to the step later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..protocol.parts import COUNTED_STEPS
from .messages import CountLabels, LabelSum


@dataclass(slots=True)
class _Step:
    """counts: of each rank, by process. total: None until all are there.

    owners: who was here then; before, who has counted. lacking: so many counts, and what is said.
    """

    counts: dict[int, dict[bytes, int]] = field(default_factory=dict)
    total: int | None = None
    owners: set[bytes] = field(default_factory=set)
    lacking: tuple[int, str] = (-1, "")


class LabelSums:
    """The sums of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._steps: dict[tuple[int, int], _Step] = {}

    def count(
        self, peer: bytes, message: CountLabels, here: Iterable[bytes]
    ) -> tuple[LabelSum, Iterable[bytes]] | None:
        """Take a count; return the step's sum and whom to tell it, None while counts are lacking.

        here: the processes that are here. Raises ValueError if another has counted otherwise.
        """
        key = message.run, message.step
        step = self._steps.setdefault(key, _Step())
        counts = step.counts.setdefault(message.rank, {})
        if (other := next(iter(counts.values()), message.tokens)) != message.tokens:
            raise ValueError(
                f"processes that share rank {message.rank} count {message.tokens} and {other} "
                f"label tokens in its batches of step {message.step}: let collate_fn make the same "
                "batch of the same samples"
            )
        counts[peer] = message.tokens
        step.owners.add(peer)
        told: Iterable[bytes] = (peer,)
        if step.total is None and len(step.counts) == self._ranks:
            step.total = sum(next(iter(counts.values())) for counts in step.counts.values())
            told, step.owners = sorted(step.owners), {*here}
        while len(self._steps) > COUNTED_STEPS:
            del self._steps[min(self._steps)]
        return None if step.total is None else (LabelSum(*key, step.total), told)

    def lacking(self, peer: bytes) -> str | None:
        """Return, as text, which counts the sum of a step lacks of which a process has sent one."""
        for (_, number), step in self._steps.items():
            if step.total is None and peer in step.owners:
                if step.lacking[0] != len(step.counts):
                    ranks = [str(rank) for rank in range(self._ranks) if rank not in step.counts]
                    text = f"the label tokens of step {number} from ranks {', '.join(ranks[:8])}"
                    step.lacking = len(step.counts), text
                return step.lacking[1]
        return None

    def lacking_ranks(self) -> set[int]:
        """Return the ranks whose counts others wait for."""
        open_steps = (step for step in self._steps.values() if step.total is None)
        return {r for step in open_steps for r in range(self._ranks) if r not in step.counts}

    def remove(self, peer: bytes, ranks: tuple[int, ...]) -> None:
        """Forget what a process with these ranks has counted, and sums that only concerned it."""
        for key, step in list(self._steps.items()):
            step.owners.discard(peer)
            for rank in ranks:
                counts = step.counts.get(rank, {})
                counts.pop(peer, None)
                if not counts:
                    step.counts.pop(rank, None)
            if not step.counts and not step.owners:
                del self._steps[key]
