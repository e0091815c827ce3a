"""Groups that fill whole steps: the heart of the three modes.

Every function returns groups as lists of sample numbers of the window, a multiple of `per_step`
(ranks x accumulate) of them. No sample is carried from one window to the next: mode `window`
takes a prefix of what it is shown, so that a resume needs only where the window starts.
"""

import numpy as np
import numpy.typing as npt

from .grouping import members
from .loads import budget_array, common_unit, oversized
from .plan import COUNTED, Int64, PlanConfig
from .split import split_largest
from .strategies import group_samples

Groups = list[list[int]]
Mask = npt.NDArray[np.bool_]

# A window of this many steps and samples is balanced as well as a longer one would be.
ENOUGH_STEPS = 4
ENOUGH_SAMPLES = 4096

# Groups over the lower bound that a first try allows, in 1/1000; a try that fails takes less.
_TRY = 1023


def fill_step(config: PlanConfig, costs: Int64, seed: int, step: int) -> Groups:
    """Group all samples into one step; with accumulate="auto" into as many rows as it takes.

    Raises ValueError, naming the smallest accumulate found, if a fixed one does not suffice.
    """
    over = oversized(costs, budget_array(config.budgets))
    accumulate = rows = first_rows(config)
    while True:
        groups = _grouped(config, costs, over, config.ranks * rows, seed)
        if len(groups) <= config.ranks * rows:
            break
        rows = max(rows + 1, -(-len(groups) // config.ranks))
    if rows > accumulate and config.accumulate != "auto":
        raise ValueError(
            f"step {step}: {len(costs)} samples do not fit the budgets in {config.ranks} ranks x "
            f"{accumulate} microbatches; the smallest accumulate found is {rows}: set that, "
            '"auto", larger budgets, or fewer samples_per_step'
        )
    return _split(costs, groups, config.ranks * rows)


def fill_prefix(config: PlanConfig, costs: Int64, seed: int) -> tuple[Groups, int]:
    """Group a prefix into whole steps, as many as it fills or are enough; return (groups, used).

    ([], 0) if all samples together do not fill one step.
    """
    over = oversized(costs, budget_array(config.budgets))
    need = _need(config, costs, over) * _TRY // 1000
    per_step = config.ranks * first_rows(config)
    steps = int(need[-1]) // per_step
    if not steps:
        return [], 0
    if ENOUGH_STEPS * config.samples_per_step >= ENOUGH_SAMPLES:
        steps = min(steps, ENOUGH_STEPS)
    wanted = steps * per_step
    used = int(np.searchsorted(need, wanted, side="right"))
    while True:
        groups = _grouped(config, costs[:used], over[:used], wanted, seed)
        if len(groups) <= wanted:
            return _split(costs, groups, wanted), used
        used = min(used - 1, used * (wanted * 1023 // 1024) // len(groups))


def fill_epoch(config: PlanConfig, costs: Int64, seed: int) -> Groups:
    """Group all samples at once, as few groups as the strategy makes; no step is filled up."""
    over = oversized(costs, budget_array(config.budgets))
    need = int(_need(config, costs, over)[-1])
    return _grouped(config, costs, over, need, seed, most=len(costs))


def first_rows(config: PlanConfig) -> int:
    """Return the microbatches per rank and step that a plan starts from."""
    return config.accumulate_from if config.accumulate == "auto" else config.accumulate


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
) -> Groups:
    """Group the samples within budget, and each one over budget alone unless it is refused."""
    chosen = np.flatnonzero(~over)
    alone = [[k] for k in np.flatnonzero(over).tolist()] if config.oversize == "alone" else []
    if not len(chosen):
        return alone
    rest = max(1, parts - len(alone))
    found = group_samples(config, costs[chosen], rest, seed, rest if most is None else most)
    if len(chosen) == len(costs):
        return members(found.group_of, found.groups)
    return [chosen[group].tolist() for group in members(found.group_of, found.groups)] + alone


def _split(costs: Int64, groups: Groups, wanted: int) -> Groups:
    if len(groups) == wanted:
        return groups
    return split_largest(common_unit(costs, 1).sum(axis=1), groups, wanted)


def fill_last(config: PlanConfig, costs: Int64, groups: Groups) -> Groups:
    """Split the largest groups of the last, partial step until they are a whole one."""
    return _split(costs, groups, config.ranks * first_rows(config))
