"""The steps that are planned and that some rank has not taken, and their samples."""

from collections import Counter
from collections.abc import Iterable

from .sample import PLACE, Place, Sample
from .step import PendingMicrobatch, PendingStep


class PlannedSteps:
    """Steps by number, samples by ordinal."""

    def __init__(self, untold_bytes: int = 0) -> None:
        """`untold_bytes`: what a rank may have taken and not acknowledged, see JobSpec."""
        self._untold_bytes = untold_bytes
        self.by_number: dict[int, PendingStep] = {}
        self.samples: dict[int, Sample] = {}
        # What may have become ready: microbatches (step, microbatch, rank), and whole steps.
        self._complete: list[Place] = []
        self._changed_steps: list[int] = []

    @property
    def front(self) -> tuple[int, int]:
        """The earliest (step, microbatch) that some rank has not taken, or (-1, -1)."""
        if not self.by_number:
            return -1, -1
        first = self.by_number[min(self.by_number)]
        return first.number, first.front

    def is_front(self, position: tuple[int, int]) -> bool:
        """Return whether some rank may wait for the microbatch at a position, and none for others.

        A rank may have taken what it was sent, and not say so while it waits for other ranks.
        """
        front = self.front
        if position <= front or position[0] != front[0]:
            return position == front
        step = self.by_number[position[0]]
        ranks = range(len(step.ranks))
        return position[1] == min(step.first_needed(each, self._untold_bytes) for each in ranks)

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
