"""The planner: a window's costs in, global batches out. Pure; nothing is kept between windows.

Grouping makes microbatches within the budgets, partition deals them to ranks, ordering arranges
each rank's. A step needs ranks x accumulate microbatches: with fewer groups the largest are split,
with more the step asks for a larger accumulate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .deal import deal
from .grouping import members, mix
from .loads import budget_array, common_unit, group_loads, oversized
from .plan import GlobalBatch, Int64, Microbatch, PlanConfig, Planned, Window, check_costs
from .split import split_largest
from .strategies import group_samples

Groups = list[list[int]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans windows under one configuration; made by make_planner."""

    config: PlanConfig

    @property
    def window_samples(self) -> int:
        """Ordinals to show to plan() at once; at the epoch's end there may be fewer."""
        return self.config.samples_per_step

    def plan(self, window: Window) -> Planned:
        """Return the window's steps.

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
        over = oversized(costs, budget_array(config.budgets))
        reported = tuple((np.flatnonzero(over) + window.start).tolist())
        partial = len(costs) < config.samples_per_step
        if not len(costs) or (partial and config.drop_last):
            return Planned((), len(costs), reported)
        batch = _exact_step(config, window, costs, over)
        return Planned((batch,), len(costs), reported)


def make_planner(config: PlanConfig) -> Planner:
    """Return the planner of a configuration.

    >>> planner = make_planner(PlanConfig(2, 4, 1, ("tiles",), (None,), "fixed", batch_size=2))
    >>> planner.plan(Window(0, 0, 8, np.array([[5], [1], [2], [3]]), last=False)).batches[0].ranks
    ((Microbatch(ordinals=(8, 9)),), (Microbatch(ordinals=(10, 11)),))
    """
    return Planner(config)


def _exact_step(
    config: PlanConfig,
    window: Window,
    costs: Int64,
    over: Mask,
) -> GlobalBatch:
    """One global batch of exactly the window's samples."""
    seed = mix(config.seed, window.epoch, window.step)
    fitting = np.flatnonzero(~over)
    alone: Groups = (
        [[k] for k in np.flatnonzero(over).tolist()] if config.oversize == "alone" else []
    )
    accumulate = config.accumulate_from if config.accumulate == "auto" else config.accumulate
    while True:
        parts = max(1, config.ranks * accumulate - len(alone))
        groups = _grouped(config, costs, fitting, parts, seed) + alone
        if len(groups) <= config.ranks * accumulate:
            break
        accumulate = max(accumulate + 1, -(-len(groups) // config.ranks))
    if config.accumulate not in ("auto", accumulate):
        raise ValueError(
            f"step {window.step}: {len(costs)} samples do not fit the budgets in {config.ranks} "
            f"ranks x {config.accumulate} microbatches; the smallest accumulate found is "
            f'{accumulate}: set that, "auto", larger budgets, or fewer samples_per_step'
        )
    groups = split_largest(common_unit(costs, 1).sum(axis=1), groups, config.ranks * accumulate)
    return _batch(config, window.step, window.start, costs, groups)


def _grouped(config: PlanConfig, costs: Int64, chosen: Int64, parts: int, seed: int) -> Groups:
    if not len(chosen):
        return []
    found = group_samples(config, costs[chosen], parts, seed)
    return [chosen[group].tolist() for group in members(found.group_of, found.groups)]


def _batch(
    config: PlanConfig, step: int, start: int, costs: Int64, groups: Sequence[list[int]]
) -> GlobalBatch:
    """Deal groups to ranks; samples become ordinals, ascending within a microbatch."""
    group_of = np.full(len(costs), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    placed = deal(config.partition, group_loads(costs, group_of, len(groups)), config.ranks)
    ordinals = [Microbatch(tuple(start + k for k in sorted(group))) for group in groups]
    return GlobalBatch(step, tuple(tuple(ordinals[g] for g in rank) for rank in placed.tolist()))
