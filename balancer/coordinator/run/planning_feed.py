"""Turn the epoch's order into planned steps: what to probe next, and when to plan a window.

Costs may arrive in any order; a window is planned when the last of its costs is known. Only the
position (a window's first ordinal and first step) carries over from one window to the next, so that
a run can start at any of them.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...planning.kernels.arrays import Int64
from ...planning.problem.config import GlobalBatch, OversizeError, Planned, Window
from ...protocol.messages import EpochPosition
from ..delivery.sample import Sample
from ..delivery.tracker import DeliveryTracker


class WindowPlanner(Protocol):
    """A pure planner: see balancer/planning/planner.py."""

    @property
    def window_samples(self) -> int:
        """The number of samples of a window."""

    def plan(self, window: Window) -> Planned:
        """Return the steps of a window."""


class PlanningFeed:
    """Probes ahead, plans windows, and adds the steps to the delivery."""

    def __init__(
        self,
        epoch: int,
        order: Int64,
        at: EpochPosition,
        planner: WindowPlanner,
        resources: int,
        delivery: DeliveryTracker,
    ) -> None:
        """`order` maps an ordinal to a position in the source; `at` is where the run starts."""
        self.epoch = epoch
        self.order = order
        self.planner = planner
        self.resources = resources
        self.delivery = delivery
        self.first = at
        self.start = at.start
        self.step = at.window_step
        self.ended = self.start >= len(order)
        self.over_budget = 0  # samples planned by themselves because they exceed a budget
        # Samples that no step has taken, though nobody refused them.
        self.left_out = 0
        self.samples: dict[int, Sample] = {}
        self._to_probe: deque[Sample] = deque()
        self._horizon = self.start
        self._unknown = 0
        self._end = self.start
        self._open_window()

    def next_samples(self, most: int, workers: int = 1) -> list[Sample]:
        """Return up to `most` samples to probe, in the order of need; a suspected one alone.

        No worker gets more than its share among `workers`, as planning waits for the last sample.
        """
        most = min(most, -(-len(self._to_probe) // workers))
        chosen: list[Sample] = []
        while self._to_probe and len(chosen) < most:
            if chosen and (chosen[0].crash_count or self._to_probe[0].crash_count):
                break
            sample = self._to_probe.popleft()
            # A late worker may have reported its costs after the lease expired.
            if sample.cost is None:
                chosen.append(sample)
        return chosen

    def requeue(self, sample: Sample) -> None:
        """Queue a sample whose probe lease was lost to be probed again, before all others."""
        if sample.cost is None:
            self._to_probe.appendleft(sample)

    def store_costs(self, sample: Sample, key: str, cost: tuple[int, ...], nbytes: int) -> None:
        """Store a sample's costs, once.

        Raises ValueError unless there is one non-negative cost per resource.
        """
        if sample.cost is not None:
            return
        if len(cost) != self.resources:
            raise ValueError(f"sample {key!r} has costs {cost}: {self.resources} are needed")
        sample.key, sample.cost, sample.nbytes = key, cost, max(nbytes, sample.nbytes)
        self._unknown -= sample.ordinal < self._end

    def store_failure(self, sample: Sample, key: str) -> None:
        """Store that a sample cannot be probed: it costs nothing and keeps its place."""
        self.store_costs(sample, key, (0,) * self.resources, 0)

    def plan_ahead(self, steps_ahead: int) -> None:
        """Plan windows while fewer than `steps_ahead` steps wait and all costs are known.

        Raises ValueError, as the planner does, when a step cannot be planned within its budgets.
        """
        while not self.ended and not self._unknown and len(self.delivery.steps) < steps_ahead:
            self._plan_window()

    @property
    def unknown(self) -> tuple[int, int]:
        """The number of the next window's samples without costs yet, and of all its samples."""
        return self._unknown, self._end - self.start

    @property
    def _window_end(self) -> int:
        return min(self.start + self.planner.window_samples, len(self.order))

    def _open_window(self) -> None:
        """Queue the samples of the next window to be probed, those not known already."""
        end = self._window_end
        for ordinal in range(self._horizon, end):
            sample = Sample(ordinal, int(self.order[ordinal]))
            self.samples[ordinal] = sample
            self._to_probe.append(sample)
        self._horizon, self._end = max(self._horizon, end), end
        self._unknown = sum(self.samples[o].cost is None for o in range(self.start, end))

    def _plan_window(self) -> None:
        end = self._window_end
        costs = np.array(
            [self.samples[ordinal].cost for ordinal in range(self.start, end)], dtype=np.int64
        ).reshape(-1, self.resources)
        window = Window(self.epoch, self.step, self.start, costs, end == len(self.order))
        try:
            planned = self.planner.plan(window)
        except OversizeError as error:
            raise ValueError(f"sample {self.samples[error.ordinal].key!r} {error.reason}") from None
        after_window = self.start + planned.consumed
        last = self.step + len(planned.batches)
        self._check_position(planned.batches)
        refused = planned.oversize if planned.refused else ()
        self.over_budget += 0 if planned.refused else len(planned.oversize)
        for batch in planned.batches:
            # A run that resumes after this step plans this window again, after the last the next.
            if batch.step + 1 == last:
                after = EpochPosition(after_window, last, last, 0)
            else:
                after = EpochPosition(self.start, self.step, batch.step + 1, 0)
            self._deliver(batch, after, refused if batch is planned.batches[0] else ())
        for ordinal in range(self.start, after_window):
            self.delivery.discard_unplanned(self.samples.pop(ordinal))
        self.ended = (end == len(self.order) and after_window >= end) or not planned.consumed
        self.start, self.step = after_window, last
        self.left_out += planned.left_out
        self._open_window()

    def _check_position(self, batches: Sequence[GlobalBatch]) -> None:
        """Raise ValueError if the run starts in this window, at a position that it has not."""
        at = self.first
        if self.start != at.start:
            return
        if at.step > self.step and at.step >= self.step + len(batches):
            raise ValueError(
                f"the ledger is at step {at.step}, but the window it stands in ends with step "
                f"{self.step + len(batches) - 1}: it was changed, or is of other data"
            )
        for batch in batches:
            if batch.step == at.step and at.microbatch >= len(batch.ranks[0]):
                raise ValueError(
                    f"the ledger is at microbatch {at.microbatch} of step {at.step}, which has "
                    f"{len(batch.ranks[0])}: it was changed, or is of other data"
                )

    def _deliver(self, batch: GlobalBatch, after: EpochPosition, refused: Sequence[int]) -> None:
        """Add one step to the delivery; samples refused as oversize are holes in it."""
        if batch.step < self.first.step:
            return  # of the window that the run starts in, but before its position
        ranks = [[[self.samples[o] for o in mb.ordinals] for mb in mbs] for mbs in batch.ranks]
        for ordinal in refused:
            sample = self.samples[ordinal]
            self.delivery.refuse(sample, "over budget, and oversize is 'refuse'")
            ranks[0][0].append(sample)
        self.delivery.add_step(batch.step, ranks, after)
