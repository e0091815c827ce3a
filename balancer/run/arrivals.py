"""Where a run begins, and what comes of it: microbatches, or the error that ends it."""

from dataclasses import dataclass
from typing import NamedTuple

from ..protocol.parts import Count, EpochPosition, Hole, Weights
from ..protocol.records import ArrayRecord, Integer
from .tasks import Made


class RunStart(NamedTuple):
    """The beginning of a run, as RankSession.begin takes it.

    costs, samples: as in the message StartRun.
    """

    epoch: int
    at: EpochPosition
    holes: tuple[int, ...] = ()
    served: int = 0
    costs: str = ""
    samples: int = -1


class MicrobatchFacts(ArrayRecord, frozen=True):
    """The facts about a microbatch beside its batch."""

    rank: Count
    step: Count
    microbatch: Count
    microbatches: Count
    weights: Weights
    costs: tuple[Integer, ...]
    padding: tuple[Integer, ...]
    after: EpochPosition
    keys: tuple[str, ...]
    holes: tuple[Hole, ...]
    step_holes: tuple[Integer, ...]


@dataclass(frozen=True, slots=True)
class LocalArrival:
    """A microbatch that a worker has made; made: None where it was handed over already."""

    batch: MicrobatchFacts
    made: Made | None = None

    def unpack(self) -> Made:
        """Return what was made."""
        return self.made or Made(None)


class RunError(Exception):
    """A run cannot go on: broken data, an impossible plan, ranks that disagree.

    raised: the error of the user's code that ends the run. comes_again: whether the microbatch that
    could not be made a few times comes again if the loop goes on.
    """

    def __init__(
        self, text: str, raised: Exception | None = None, comes_again: bool = False
    ) -> None:
        super().__init__(text)
        self.raised = raised
        self.comes_again = comes_again
