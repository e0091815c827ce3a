"""The label tokens of the last steps, as the trainer's processes count them, and their sums.

What a process has counted goes when it does, unless the sum is known: others may come to the step
later. Of those who were here when it was known the last one takes it along, so that nothing is left
of a former launch. Whose count has gone counts again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from ..protocol.parts import COUNTED_STEPS
from .messages import CountLabels, LabelSum
from .seats import format_ranks


@dataclass(slots=True)
class _Step:
    """tokens: of each rank that has counted; lacking: the other ranks.

    owners: who has counted; once nothing lacks, who was here then.
    """

    lacking: dict[int, None]
    tokens: dict[int, int] = field(default_factory=dict)
    owners: set[bytes] = field(default_factory=set)


class LabelSums:
    """The sums of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._steps: dict[tuple[int, int], _Step] = {}

    def count(
        self, peer: bytes, message: CountLabels, here: Iterable[bytes]
    ) -> list[tuple[bytes, LabelSum]]:
        """Take a count; return the step's sum for those that are to be told it, if it is known.

        here: the processes that are here. Raises ValueError if another has counted otherwise.
        """
        key = message.run, message.step
        if (step := self._steps.get(key)) is None:
            step = self._steps[key] = _Step(dict.fromkeys(range(self._ranks)))
        if (counted := step.tokens.setdefault(message.rank, message.tokens)) != message.tokens:
            raise ValueError(
                f"processes that share rank {message.rank} count {message.tokens} and {counted} "
                f"label tokens in its batches of step {message.step}: let collate_fn make the same "
                "batch of the same samples"
            )
        receivers, was_open = {peer}, bool(step.lacking)
        step.lacking.pop(message.rank, None)
        if was_open:
            step.owners.add(peer)
            if not step.lacking:
                receivers, step.owners = step.owners, {*here}
        while len(self._steps) > COUNTED_STEPS:
            del self._steps[min(self._steps)]
        if step.lacking:
            return []
        total = LabelSum(*key, sum(step.tokens.values()))
        return [(receiver, total) for receiver in sorted(receivers)]

    def lacking(self, peer: bytes) -> str | None:
        """Return, as text, which counts the sum of a step lacks of which a process has sent one."""
        for (_, number), step in self._steps.items():
            if step.lacking and peer in step.owners:
                ranks = format_ranks(islice(step.lacking, 8))
                return f"the label tokens of step {number} from ranks {ranks}"
        return None

    def remove(self, peer: bytes, ranks: tuple[int, ...]) -> None:
        """Forget what a process with these ranks has counted, and sums that only concerned it."""
        for key, step in list(self._steps.items()):
            step.owners.discard(peer)
            if not step.owners:
                del self._steps[key]
            elif step.lacking:
                for rank in ranks:
                    step.tokens.pop(rank, None)
                    step.lacking[rank] = None
