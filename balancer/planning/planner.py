"""The planner: a window's costs in, global batches out. Pure; nothing is kept between windows.

Grouping makes microbatches within the budgets (steps.py), partition assigns them to ranks
ordering arranges each rank's (balancer/planning/ordering/ranks.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .grouping.result import mix
from .kernels.arrays import Int64
from .partition.assign import deal
from .problem.config import GlobalBatch, Microbatch, PlanConfig, Planned, Window, check_costs
from .problem.loads import budget_array, group_loads, oversized
from .steps import FilledSteps, fill_epoch, fill_prefix, fill_step

WINDOW_STEPS = 4
WINDOW_SAMPLES = 5120  # shown, so that 4096 are planned together even if groups fill badly
WHOLE_EPOCH = 2**40

Arrange = Callable[[Int64, Int64], Int64]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans windows under one configuration; made by make_planner."""

    config: PlanConfig
    arrange: Arrange | None = None

    @property
    def window_samples(self) -> int:
        """Ordinals to show to plan() at once; at the epoch's end there are fewer.

        Mode `epoch` wants all at once: 2**40 stands for that.
        """
        size = self.config.samples_per_step
        if self.config.mode == "epoch":
            return WHOLE_EPOCH
        if self.config.mode == "exact":
            return size
        return (max(WINDOW_STEPS, -(-WINDOW_SAMPLES // size)) + 1) * size

    def plan(self, window: Window) -> Planned:
        """Return the window's steps; see PlanConfig for what they hold.

        Raises ValueError if the window is short without being the last, or if budgets cannot be
        met with the configured accumulate; the error names the smallest that can.
        """
        config = self.config
        costs = check_costs(window.costs, len(config.resources))
        short = len(costs) < self.window_samples and not window.last
        if short or len(costs) > self.window_samples:
            raise ValueError(
                f"window at ordinal {window.start} has {len(costs)} samples; show "
                f"{self.window_samples}, or fewer with last=True at the epoch's end"
            )
        filled = self._filled(window, costs)
        over = np.flatnonzero(oversized(costs[: filled.used], budget_array(config.budgets)))
        batches = tuple(self._batches(window, costs[: filled.used], filled))
        oversize = tuple((over + window.start).tolist())
        return Planned(batches, filled.used, oversize, config.oversize == "refuse")

    def _filled(self, window: Window, costs: Int64) -> FilledSteps:
        """The groups of every step, by the mode."""
        config = self.config
        seed = mix(config.seed, window.epoch, window.start)
        if config.mode == "epoch" and len(costs):
            return fill_epoch(config, costs, seed)
        partial = len(costs) < config.samples_per_step
        if config.mode == "window" and len(costs):
            filled = fill_prefix(config, costs, seed)
            if filled.steps:
                return filled
            partial = window.last
        if not len(costs) or (partial and config.drop_last):
            return FilledSteps(np.full(len(costs), -1, dtype=np.int64), ())
        return fill_step(config, costs, seed, window.step)

    def _batches(self, window: Window, costs: Int64, filled: FilledSteps) -> Iterator[GlobalBatch]:
        """Deal every step's groups to ranks; a microbatch's ordinals are ascending."""
        config = self.config
        # A dropped step leaves groups that no step has, a filled one may have groups of nothing.
        highest = [int(each.max(initial=-1)) for each in (filled.group_of, *filled.steps)]
        groups = 1 + max(highest)
        loads = group_loads(costs, filled.group_of, groups)
        order = np.argsort(filled.group_of, kind="stable")
        edges = np.searchsorted(filled.group_of[order], np.arange(groups + 1)).tolist()
        ordinals = (order + window.start).tolist()
        for step, chosen in enumerate(filled.steps, start=window.step):
            seed = mix(config.seed, window.epoch, step)
            dealt = deal(config.partition, loads[chosen], config.ranks, seed)
            if self.arrange is not None:
                dealt = self.arrange(loads[chosen], dealt)
            ranks = tuple(
                tuple([Microbatch(tuple(ordinals[edges[g] : edges[g + 1]])) for g in rank])
                for rank in chosen[dealt].tolist()
            )
            yield GlobalBatch(step, ranks)


def make_planner(config: PlanConfig, arrange: Arrange | None = None) -> Planner:
    """Return the planner of a configuration.

    arrange: for orderings other than "given", a function that takes a step's microbatch loads
    (groups, resources) and which group each rank runs when (ranks, accumulate), and returns the
    latter rearranged; `ordering.ranks.arranger` makes one. Raises ValueError if it is missing.

    >>> planner = make_planner(PlanConfig(2, 4, 1, ("tiles",), (None,), "fixed", batch_size=2))
    >>> batch, = planner.plan(Window(0, 0, 8, np.array([[5], [1], [2], [3]]), False)).batches
    >>> [[microbatch.ordinals for microbatch in rank] for rank in batch.ranks]
    [[(8, 9)], [(10, 11)]]
    """
    if (config.ordering != "given") != (arrange is not None):
        raise ValueError(
            f"ordering {config.ordering!r} and arrange={arrange!r} do not go together: an ordering "
            'other than "given" needs a function from ordering.ranks.arranger, "given" needs none'
        )
    return Planner(config, arrange)
