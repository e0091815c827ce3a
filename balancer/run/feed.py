"""Plans an epoch's windows one after the other, as far as costs are known: pure.

Only the position (a window's first ordinal and first step) carries over from one window to the
next, so that a run can start at any of them, and every rank plans the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ..planning.kernels.arrays import Int64
from ..planning.planner import Planner
from ..planning.problem.config import GlobalBatch, Planned, Window
from ..planning.problem.costs import OversizeError
from ..protocol.parts import EpochPosition
from .costs import LoopCosts

# Of the samples for a microbatch without any some may be broken; after so many nobody expects a
# good one.
SPARES = 100


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of the plan, for all ranks.

    after: the position after it. batch: who has which ordinals. indexes, costs: of its window's
    samples, from ordinal `start` on: in the source (n,), and per resource (n, resources).
    refused: ordinals over budget that are left out, as holes of the first rank's first microbatch.
    spares: indexes of samples for a microbatch without any, in loops that cannot take an empty one;
    the first that can be loaded weighs nothing there.
    """

    number: int
    after: EpochPosition
    batch: GlobalBatch
    start: int
    indexes: Int64
    costs: Int64
    refused: tuple[int, ...] = ()
    spares: tuple[int, ...] = ()

    @property
    def microbatches(self) -> int:
        """The number of microbatches of each rank."""
        return len(self.batch.ranks[0])

    @property
    def samples(self) -> int:
        """The number of samples of all ranks."""
        return sum(len(each.ordinals) for rank in self.batch.ranks for each in rank)

    def ordinals(self, rank: int, microbatch: int) -> tuple[int, ...]:
        """Return the ordinals of a microbatch, ascending."""
        return self.batch.ranks[rank][microbatch].ordinals

    def all_ordinals(self) -> set[int]:
        """Return the ordinals of all ranks, and those that are refused."""
        microbatches = chain.from_iterable(self.batch.ranks)
        return {*chain.from_iterable(each.ordinals for each in microbatches), *self.refused}

    def indexes_of(self, ordinals: Sequence[int]) -> list[int]:
        """Return where in the source the samples of ordinals are."""
        rows = np.array(ordinals, np.int64) - self.start
        found: list[int] = self.indexes[rows].tolist()
        return found

    def costs_of(self, ordinals: Sequence[int]) -> Int64:
        """Return the costs of ordinals (n, resources)."""
        return self.costs[np.array(ordinals, np.int64) - self.start]


@dataclass(slots=True)
class PlanFeed:
    """The plan of an epoch, window by window, from a position.

    order: maps an ordinal to an index in the source; name_of: names a sample, by its index.
    left_out: samples that no step has taken,
    though nobody refused them. is_over: all windows are planned.
    """

    epoch: int
    order: Int64
    planner: Planner
    costs: LoopCosts
    at: EpochPosition
    name_of: Callable[[int], str] = str
    left_out: int = 0
    start: int = field(init=False)
    step: int = field(init=False)
    is_over: bool = field(init=False)

    def __post_init__(self) -> None:
        self.start, self.step = self.at.start, self.at.window_step
        self.is_over = self.start >= len(self.order)

    @property
    def end(self) -> int:
        """The ordinal after the last of the next window."""
        return min(self.start + self.planner.window_samples, len(self.order))

    def plan(self) -> Iterator[PlannedStep]:
        """Plan the next window, whose costs are known; return its steps from the position on.

        Raises ValueError where its budgets cannot be met, and for a position that the plan does not
        have.
        """
        begin, end = self.start, self.end
        indexes = self.order[begin:end]
        rows = self.costs.rows(indexes)
        try:
            window = Window(self.epoch, self.step, begin, rows, end == len(self.order))
            planned = self.planner.plan(window)
        except OversizeError as error:
            index = int(self.order[error.ordinal])
            raise ValueError(f"sample {self.name_of(index)!r} {error.reason}") from None
        if self.start == self.at.start:
            microbatches = [len(each.ranks[0]) for each in planned.batches]
            self.at.check_in_window(self.step, microbatches, window.costs_digest())
        first, last = self.step, self.step + len(planned.batches)
        after_window = begin + planned.consumed
        self.is_over = (end == len(self.order) and after_window >= end) or not planned.consumed
        self.left_out += planned.left_out
        self.start, self.step = after_window, last
        after = EpochPosition(after_window, last, last, 0, window.costs_digest())
        return self._steps(planned, after, begin, first, rows)

    def _steps(
        self, planned: Planned, after: EpochPosition, begin: int, first: int, rows: Int64
    ) -> Iterator[PlannedStep]:
        """Yield a window's steps from the position on; those of a whole epoch are made one by one.

        after: the position after the window; begin, first: its first ordinal and step.
        """
        indexes = self.order[begin : begin + len(rows)]
        # It follows from epoch and position alone, so that a resumed run has the same batches.
        spares = self.order[np.arange(begin, begin + SPARES) % len(self.order)].tolist()
        refused = planned.oversize if planned.refused else ()
        for batch in planned.batches:
            here = after
            # A run that resumes after this step plans this window again, after the last the next.
            if batch.step + 1 < after.step:
                here = EpochPosition(begin, first, batch.step + 1, 0, after.costs)
            if batch.step >= self.at.step:
                yield PlannedStep(
                    batch.step, here, batch, begin, indexes, rows, refused, tuple(spares)
                )
            refused = ()
