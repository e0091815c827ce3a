"""Groups that fill whole steps: the heart of the three modes.

Every function returns a `Filled`: each sample's group, and for every step the numbers of its
ranks x accumulate groups. No sample is carried from one window to the next: mode `window` takes
a prefix of what it is shown, so that a resume needs only where the window starts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .grouping.by_name import group_samples
from .grouping.result import mix
from .grouping.split import split_largest
from .kernels.arrays import Int64
from .problem.config import COUNTED, PlanConfig
from .problem.loads import budget_array, common_unit, oversized
from .problem.shuffle import permutation

Mask = npt.NDArray[np.bool_]

# A window of this many steps and samples is balanced as well as a longer one would be.
ENOUGH_STEPS = 4
ENOUGH_SAMPLES = 4096

# Groups over the lower bound that a first try allows, in 1/1000; a try that fails takes less.
_TRY = 1023
_PILOT = 4096


@dataclass(frozen=True, slots=True)
class FilledSteps:
    """group_of (used,): each used sample's group, -1 for none; steps: their groups' numbers."""

    group_of: Int64
    steps: tuple[Int64, ...]

    @property
    def used(self) -> int:
        """Samples of the window that the steps use up."""
        return len(self.group_of)


def fill_step(config: PlanConfig, costs: Int64, seed: int, step: int) -> FilledSteps:
    """Group all samples into one step; with accumulate="auto" into as many rows as it takes.

    Raises ValueError, naming the smallest accumulate found, if a fixed one does not suffice.
    """
    over = oversized(costs, budget_array(config.budgets))
    accumulate = rows = first_rows(config)
    while True:
        group_of, groups = _grouped(config, costs, over, config.ranks * rows, seed)
        if groups <= config.ranks * rows:
            break
        rows = max(rows + 1, -(-groups // config.ranks))
    if rows > accumulate and config.accumulate != "auto":
        raise ValueError(
            f"step {step}: {len(costs)} samples do not fit the budgets in {config.ranks} ranks x "
            f"{accumulate} microbatches; the smallest accumulate found is {rows}: set that, "
            '"auto", larger budgets, or fewer samples_per_step'
        )
    chosen = np.arange(groups, dtype=np.int64)
    group_of, chosen = split_largest(_sizes(costs), group_of, chosen, config.ranks * rows)
    return FilledSteps(group_of, (chosen,))


def fill_prefix(config: PlanConfig, costs: Int64, seed: int) -> FilledSteps:
    """Group a prefix into whole steps, as many as it fills or are enough.

    No step at all if all samples together do not fill one.
    """
    over = oversized(costs, budget_array(config.budgets))
    bound = _need(config, costs, over)
    need = bound * _allowance(config, costs, over, bound, seed) // 1000
    per_step = config.ranks * first_rows(config)
    steps = int(need[-1]) // per_step
    if ENOUGH_STEPS * config.samples_per_step >= ENOUGH_SAMPLES:
        steps = min(steps, ENOUGH_STEPS)
    wanted = steps * per_step
    if not wanted:
        return FilledSteps(np.empty(0, dtype=np.int64), ())
    used = int(np.searchsorted(need, wanted, side="right"))
    while True:
        group_of, groups = _grouped(config, costs[:used], over[:used], wanted, seed)
        if groups <= wanted:
            break
        used = min(used - 1, used * (wanted * 1023 // 1024) // groups)
    chosen = np.arange(groups, dtype=np.int64)
    group_of, chosen = split_largest(_sizes(costs[:used]), group_of, chosen, wanted)
    return _to_steps(config, costs[:used], group_of, chosen, seed)


def _allowance(config: PlanConfig, costs: Int64, over: Mask, bound: Int64, seed: int) -> int:
    """Groups per lower bound that a first try allows, in 1/1000: tried out where that is cheap."""
    if len(costs) < 3 * _PILOT:
        return _TRY
    few = int(bound[_PILOT - 1])
    _, groups = _grouped(config, costs[:_PILOT], over[:_PILOT], few, seed, most=0)
    return max(_TRY, groups * 1000 // max(1, few) + 1)


def fill_epoch(config: PlanConfig, costs: Int64, seed: int) -> FilledSteps:
    """Group all samples at once, deal the groups to steps, and fill up the last or drop it."""
    over = oversized(costs, budget_array(config.budgets))
    need = int(_need(config, costs, over)[-1])
    group_of, groups = _grouped(config, costs, over, need, seed, most=len(costs))
    return _to_steps(config, costs, group_of, np.arange(groups, dtype=np.int64), seed)


def first_rows(config: PlanConfig) -> int:
    """Return the microbatches per rank and step that a plan starts from."""
    return config.accumulate_from if config.accumulate == "auto" else config.accumulate


def _to_steps(
    config: PlanConfig, costs: Int64, group_of: Int64, chosen: Int64, seed: int
) -> FilledSteps:
    """Shuffle groups and cut them into steps; the last, partial one is filled up or dropped."""
    size = config.ranks * first_rows(config)
    # rows that were made to run side by side stay together
    block = config.ranks if config.grouping == "device" else 1
    whole = len(chosen) // block
    blocks = chosen[: whole * block].reshape(whole, block)[permutation(whole, mix(seed, 1), 0)]
    shuffled = np.concatenate([blocks.ravel(), chosen[whole * block :]])
    steps = [shuffled[begin : begin + size] for begin in range(0, len(shuffled), size)]
    if steps and len(steps[-1]) < size:
        last = steps.pop()
        if not config.drop_last:
            group_of, last = split_largest(_sizes(costs), group_of, last, size)
            steps.append(last)
    return FilledSteps(group_of, tuple(steps))


def _need(config: PlanConfig, costs: Int64, over: Mask) -> Int64:
    """For each prefix, the groups that it needs at least: int64 (n,), never falling."""
    if config.grouping in COUNTED:
        size = config.batch_size or 1
        return np.arange(size, len(costs) + size, dtype=np.int64) // size
    sums = np.cumsum(np.where(over[:, None], 0, costs), axis=0)
    inside: Int64 = np.max(-(-sums // budget_array(config.budgets)), axis=1)
    return inside + np.cumsum(over) * (config.oversize == "alone")


def _grouped(
    config: PlanConfig, costs: Int64, over: Mask, parts: int, seed: int, most: int | None = None
) -> tuple[Int64, int]:
    """Group the samples within budget; each one over budget is alone, or in none if refused."""
    inside, outside = np.flatnonzero(~over), np.flatnonzero(over)
    alone = len(outside) if config.oversize == "alone" else 0
    group_of, groups = np.full(len(costs), -1, dtype=np.int64), 0
    if len(inside):
        rest = max(1, parts - alone)
        limit = rest if most is None else most
        found = group_samples(config, costs[inside], rest, seed, limit)
        group_of[inside], groups = found.group_of, found.groups
    if alone:
        group_of[outside] = groups + np.arange(alone)
    return group_of, groups + alone


def _sizes(costs: Int64) -> Int64:
    sizes: Int64 = common_unit(costs, 1).sum(axis=1)
    return sizes
