"""The steps that are planned and that some rank has not taken, and how far each rank has got.

Positions are (step, microbatch).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from .sample import PLACE, Place, Sample
from .step import PendingMicrobatch, PendingStep

Position = tuple[int, int]
BEGINNING: Position = (0, 0)


class RankProgress:
    """The first position that each rank may still need; it only moves on.

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


class PlannedSteps:
    """Steps by number, samples by ordinal."""

    def __init__(self) -> None:
        self.by_number: dict[int, PendingStep] = {}
        self.samples: dict[int, Sample] = {}
        # What may have become ready: microbatches (step, microbatch, rank), and whole steps.
        self._complete: list[Place] = []
        self._changed_steps: list[int] = []

    @property
    def front(self) -> Position:
        """The earliest position that some rank has not taken, or (-1, -1)."""
        if not self.by_number:
            return -1, -1
        first = self.by_number[min(self.by_number)]
        return first.number, first.front

    def find(
        self, rank: int, number: int, microbatch: int
    ) -> tuple[PendingStep, PendingMicrobatch] | None:
        """Return a step and its microbatch of a rank, None where there is no such."""
        step = self.by_number.get(number)
        batch = step.find(rank, microbatch) if step is not None else None
        return (step, batch) if step is not None and batch is not None else None

    def change_missing(self, samples: Iterable[Sample], by: int) -> None:
        """Change how many samples the microbatches of planned samples miss, `by` for each."""
        for place, number in Counter(map(PLACE, samples)).items():
            step = self.by_number.get(place[0])
            if step is None:
                continue
            batch = step.ranks[place[2]][place[1]]
            batch.missing += by * number
            if not batch.missing:
                self._complete.append(place)

    def settle(self, samples: Iterable[Sample]) -> list[PendingStep]:
        """Count samples as decoded once, or as holes; return the steps that it is the last of."""
        fresh = [sample for sample in samples if not sample.settled]
        for sample in fresh:
            sample.settled = True
        settled = list[PendingStep]()
        for place, number in Counter(map(PLACE, fresh)).items():
            step = self.by_number.get(place[0])
            if step is not None:
                step.unsettled -= number
                if not step.unsettled:
                    settled.append(step)
        return settled

    def note_step(self, number: int) -> None:
        """Note that microbatches of a step may have become ready."""
        self._changed_steps.append(number)

    def take_changed(self) -> tuple[list[Place], list[int]]:
        """Return, once, the microbatches and the steps of which some may have become ready."""
        changed = self._complete, self._changed_steps
        self._complete, self._changed_steps = [], []
        return changed
