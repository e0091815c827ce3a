"""The steps that are planned and that some rank has not taken, and their samples."""

from .sample import Sample
from .step import PendingMicrobatch, PendingStep


class PlannedSteps:
    """Steps by number, samples by ordinal."""

    def __init__(self) -> None:
        self.by_number: dict[int, PendingStep] = {}
        self.samples: dict[int, Sample] = {}

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
        if step is not None:
            step.ranks[sample.rank][sample.microbatch].missing += by
