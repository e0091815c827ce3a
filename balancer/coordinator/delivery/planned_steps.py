"""The steps that are planned and that some rank has not taken, and their samples."""

from .sample import Sample
from .step import PendingMicrobatch, PendingStep

# (step, microbatch, rank)
Place = tuple[int, int, int]


class PlannedSteps:
    """Steps by number, samples by ordinal."""

    def __init__(self) -> None:
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

    def find(
        self, rank: int, number: int, microbatch: int
    ) -> tuple[PendingStep, PendingMicrobatch] | None:
        """Return a step and its microbatch of a rank, None where there is no such."""
        step = self.by_number.get(number)
        batch = step.find(rank, microbatch) if step is not None else None
        return (step, batch) if step is not None and batch is not None else None

    def change_missing(self, sample: Sample, by: int) -> None:
        """Change how many samples a planned sample's microbatch misses."""
        step = self.by_number.get(sample.step)
        if step is None:
            return
        batch = step.ranks[sample.rank][sample.microbatch]
        batch.missing += by
        if not batch.missing:
            self._complete.append((sample.step, sample.microbatch, sample.rank))

    def note_step(self, number: int) -> None:
        """Note that microbatches of a step may have become ready."""
        self._changed_steps.append(number)

    def take_changed(self) -> tuple[list[Place], list[int]]:
        """Return, once, the microbatches and the steps of which some may have become ready."""
        changed = self._complete, self._changed_steps
        self._complete, self._changed_steps = [], []
        return changed
