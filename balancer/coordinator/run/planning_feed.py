"""Turn the epoch's order into planned steps: what to probe next, and when to plan a window.

Costs may arrive in any order; a window is planned when the last of its costs is known. Only the
position (a window's first ordinal and first step) carries over from one window to the next, so that
a run can start at any of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ...planning.kernels.arrays import Int64
from ...planning.planner import WHOLE_EPOCH
from ...planning.problem.config import GlobalBatch, Planned, Window
from ...planning.problem.costs import OversizeError
from ...protocol.parts import EpochPosition, Probed
from ..delivery.sample import ORDINAL, Sample, SampleFailure
from ..delivery.tracker import DeliveryTracker
from .known_costs import KnownCosts, OpenSamples

# A planned window becomes steps of the delivery step by step, so many samples ahead.
AHEAD_SAMPLES = 8192


class WindowPlanner(Protocol):
    """A pure planner: see balancer/planning/planner.py."""

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""

    def plan(self, window: Window) -> Planned:
        """Return the steps of a window."""


def plans_whole_epoch(planner: WindowPlanner) -> bool:
    """Return whether a planner's window is the epoch, however many samples that has."""
    return planner.window_samples >= WHOLE_EPOCH


@dataclass(slots=True)
class _Undelivered:
    """A planned window, and the number of its steps that the delivery has.

    first: the number of its first step; start, end: the ordinals of its samples; costs: their
    digest.
    """

    planned: Planned
    first: int
    start: int
    end: int
    costs: str
    delivered: int = 0


class PlanningFeed:
    """Probes ahead, plans windows, and adds the steps to the delivery."""

    def __init__(
        self,
        epoch: int,
        order: Int64,
        at: EpochPosition,
        planner: WindowPlanner,
        known: KnownCosts,
        delivery: DeliveryTracker,
    ) -> None:
        """`order` maps an ordinal to an index in the source; `at` is where the run starts.

        `known` are the costs that are known; those that are measured are added.
        """
        self.epoch = epoch
        self.order = order
        self.planner = planner
        self.resources = len(known.limits)
        self.delivery = delivery
        self.first = at
        self.start = at.start
        self.step = at.window_step
        self.ended = self.start >= len(order)
        self.over_budget = 0  # samples planned by themselves because they exceed a budget
        # Samples that no step has taken, though nobody refused them.
        self.left_out = 0
        self.samples = OpenSamples(order, self.start, known, plans_whole_epoch(planner))
        self._undelivered: _Undelivered | None = None
        self._open_window()

    def has_to_probe(self, most: int) -> bool:
        """Return whether samples wait to be probed, or would with `open_ahead`."""
        samples = self.samples
        return samples.to_probe > 0 or samples.end < min(self.end + most, len(self.order))

    def open_ahead(self, most: int) -> None:
        """Open up to `most` samples beyond the next window to probing, once none of it waits."""
        samples = self.samples
        if not samples.to_probe and self.has_to_probe(most):
            samples.open(min(samples.end + most, len(self.order)))

    def store_costs(self, measured: Iterable[tuple[Sample, Probed]]) -> list[Sample]:
        """Store samples' names, costs and sizes, once; return those that had none."""
        first = [(sample, found) for sample, found in measured if sample.cost is None]
        for sample, found in first:
            sample.key, sample.cost = found.key, found.cost
            sample.nbytes = max(sample.nbytes, found.nbytes)
        samples = [sample for sample, _ in first]
        self.unknown -= sum([ordinal < self.end for ordinal in map(ORDINAL, samples)])
        return samples

    def store_failure(self, sample: Sample, key: str) -> None:
        """Store that a sample cannot be probed: it costs nothing and keeps its place."""
        self.samples.known.note_failed([sample.index])
        self.store_costs([(sample, Probed(sample.ordinal, key, (0,) * self.resources, 0))])

    def plan_ahead(self, steps_ahead: int) -> None:
        """Plan windows while fewer than `steps_ahead` steps wait and all costs are known.

        Raises ValueError, as the planner does, when a step cannot be planned within its budgets.
        """
        delivery = self.delivery
        while True:
            is_short = len(delivery.steps) < steps_ahead
            if self._undelivered is not None:
                if not (is_short or len(delivery.planned.samples) < AHEAD_SAMPLES):
                    return
                self._deliver_step(self._undelivered)
            elif self.ended or self.unknown or not is_short:
                return
            else:
                self._plan_window()

    def _open_window(self) -> None:
        """Queue the samples of the next window to be probed, those not known already."""
        self.end = min(self.start + self.planner.window_samples, len(self.order))
        self.samples.open(self.end)
        self.unknown = self.samples.unknown(self.start, self.end)

    def _plan_window(self) -> None:
        is_last = self.end == len(self.order)
        known = self.samples.costs(self.start, self.end)
        window = Window(self.epoch, self.step, self.start, known, is_last)
        try:
            planned, costs = self.planner.plan(window), window.costs_digest()
        except OversizeError as error:
            seen, index = self.samples.seen.get(error.ordinal), self.order[error.ordinal]
            name = repr(seen.key) if seen is not None else f"{index} of the source"
            raise ValueError(f"sample {name} {error.reason}") from None
        after_window = self.start + planned.consumed
        if self.start == self.first.start:
            microbatches = [len(each.ranks[0]) for each in planned.batches]
            self.first.check_in_window(self.step, microbatches, costs)
        self.over_budget += 0 if planned.refused else len(planned.oversize)
        self._undelivered = _Undelivered(planned, self.step, self.start, after_window, costs)
        if not planned.batches:
            self._end_window(self._undelivered)
        self.ended = (is_last and after_window >= self.end) or not planned.consumed
        self.start, self.step = after_window, self.step + len(planned.batches)
        self.left_out += planned.left_out
        self._open_window()

    def _deliver_step(self, window: _Undelivered) -> None:
        """Add the next step of a planned window to the delivery."""
        planned, last = window.planned, window.first + len(window.planned.batches)
        batch = planned.batches[window.delivered]
        # A run that resumes after this step plans this window again, after the last the next.
        if batch.step + 1 == last:
            after = EpochPosition(window.end, last, last, 0, window.costs)
        else:
            after = EpochPosition(window.start, window.first, batch.step + 1, 0, window.costs)
        is_first = not window.delivered
        window.delivered += 1
        if batch.step >= self.first.step:  # else the run starts in this window, but after the step
            refused = planned.oversize if planned.refused and is_first else ()
            self._deliver(batch, after, refused)
        if window.delivered == len(planned.batches):
            self._end_window(window)

    def _end_window(self, window: _Undelivered) -> None:
        """Forget the samples of a window that no step has taken."""
        self._undelivered = None
        # Their payloads, too: they were decoded to be measured.
        untaken = self.samples.forget_before(window.end)
        self.delivery.budget.drop(each for each in untaken if each.step < 0)

    def _deliver(self, batch: GlobalBatch, after: EpochPosition, refused: Sequence[int]) -> None:
        """Add one step to the delivery; samples refused as oversize are holes in it."""
        take = self.samples.take
        # All at once: numpy's calls cost as much for a microbatch.
        ordinals = [each for mbs in batch.ranks for mb in mbs for each in mb.ordinals]
        taken = iter(take(ordinals))
        ranks = [[[*islice(taken, len(mb.ordinals))] for mb in mbs] for mbs in batch.ranks]
        for sample in take(refused):
            self.delivery.budget.drop((sample,))
            self.delivery.fail(sample, SampleFailure("over budget, and oversize is 'refuse'"))
            ranks[0][0].append(sample)
        self.delivery.add_step(batch.step, ranks, after)
