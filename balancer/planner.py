"""The planner: a window's costs in, global batches out. Pure; nothing is kept between windows.

Grouping makes microbatches within the budgets (fill.py), partition deals them to ranks (deal.py),
ordering arranges each rank's (ordering_ranks.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .deal import deal
from .fill import Groups, fill_epoch, fill_last, fill_prefix, fill_step, first_rows
from .grouping import mix
from .loads import budget_array, group_loads, oversized
from .order import permutation
from .plan import GlobalBatch, Int64, Microbatch, PlanConfig, Planned, Window, check_costs

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
        steps, used = self._steps(window, costs)
        batches = tuple(
            self._batch(window, step, costs, groups)
            for step, groups in enumerate(steps, start=window.step)
        )
        over = np.flatnonzero(oversized(costs[:used], budget_array(config.budgets)))
        return Planned(batches, used, tuple((over + window.start).tolist()))

    def _steps(self, window: Window, costs: Int64) -> tuple[list[Groups], int]:
        """The groups of every step, and how many samples they use up."""
        config = self.config
        seed = mix(config.seed, window.epoch, window.start)
        if not len(costs):
            return [], 0
        if config.mode == "epoch":
            return _dealt_to_steps(config, costs, fill_epoch(config, costs, seed), seed), len(costs)
        if config.mode == "window":
            groups, used = fill_prefix(config, costs, seed)
            if groups:
                return _dealt_to_steps(config, costs, groups, seed), used
            partial = window.last
        else:
            partial = len(costs) < config.samples_per_step
        if partial and config.drop_last:
            return [], len(costs)
        return [fill_step(config, costs, seed, window.step)], len(costs)

    def _batch(self, window: Window, step: int, costs: Int64, groups: Groups) -> GlobalBatch:
        """Deal groups to ranks; samples become ordinals, ascending within a microbatch."""
        config = self.config
        flat = [sample for group in groups for sample in group]
        owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        loads = group_loads(costs[flat], owner, len(groups))
        dealt = deal(config.partition, loads, config.ranks, mix(config.seed, window.epoch, step))
        if self.arrange is not None:
            dealt = self.arrange(loads, dealt)
        start = window.start
        made = [Microbatch(tuple([start + k for k in sorted(group)])) for group in groups]
        return GlobalBatch(step, tuple(tuple([made[g] for g in rank]) for rank in dealt.tolist()))


def make_planner(config: PlanConfig, arrange: Arrange | None = None) -> Planner:
    """Return the planner of a configuration.

    arrange: for orderings other than "given", a function that takes a step's microbatch loads
    (groups, resources) and which group each rank runs when (ranks, accumulate), and returns the
    latter rearranged; `ordering_ranks.arranger` makes one. Raises ValueError if it is missing.

    >>> planner = make_planner(PlanConfig(2, 4, 1, ("tiles",), (None,), "fixed", batch_size=2))
    >>> batch, = planner.plan(Window(0, 0, 8, np.array([[5], [1], [2], [3]]), False)).batches
    >>> [[microbatch.ordinals for microbatch in rank] for rank in batch.ranks]
    [[(8, 9)], [(10, 11)]]
    """
    if (config.ordering != "given") != (arrange is not None):
        raise ValueError(
            f"ordering {config.ordering!r} and arrange={arrange!r} do not go together: an ordering "
            'other than "given" needs a function from ordering_ranks.arranger, "given" needs none'
        )
    return Planner(config, arrange)


def _dealt_to_steps(config: PlanConfig, costs: Int64, groups: Groups, seed: int) -> list[Groups]:
    """Shuffle groups and cut them into steps; the last, partial one is filled up or dropped."""
    shuffled = [groups[k] for k in permutation(len(groups), mix(seed, 1), 0).tolist()]
    size = config.ranks * first_rows(config)
    steps = [shuffled[k : k + size] for k in range(0, len(shuffled), size)]
    if len(steps[-1]) < size:
        last = steps.pop()
        if not config.drop_last:
            steps.append(fill_last(config, costs, last))
    return steps
