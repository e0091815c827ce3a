"""The choice that `balance="auto"` makes once: what samples cost, and how batches hold them.

It decides the plan, so it is the same on all ranks and stands in the ledger: whoever resumes takes
it from there, whatever the first samples are then.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ...balancer.protocol.records import read_record
from ...workers.discovery import FoundCosts


@dataclass(frozen=True, slots=True)
class Choice:
    """The costs and the work that were found; `to_json` and `from_json` are inverses.

    costs: FoundCosts as JSON values, None where the data say by themselves what samples cost.
    resources: the costs' names. padded: those of which a microbatch costs count x largest. varies:
    False where all samples cost alike. costs_said, work_said: both in words.

    >>> choice = Choice(None, ("tokens",), ("tokens",))
    >>> Choice.from_json(choice.to_json()) == choice
    True
    """

    costs: dict[str, Any] | None
    resources: tuple[str, ...]
    padded: tuple[str, ...]
    varies: bool = True
    costs_said: str = ""
    work_said: str = ""

    @property
    def found(self) -> FoundCosts | None:
        """The measure of samples that was found; None where the data say their costs."""
        return None if self.costs is None else FoundCosts.from_dict(self.costs)

    def to_json(self) -> str:
        """Return the choice as a line of JSON, the same for equal choices."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Choice":
        """Return the choice in a line of JSON; ValueError if there is none."""
        return read_record(cls, json.loads(text), "auto")
