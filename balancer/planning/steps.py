"""Decides how many microbatches each step has and which samples each of them holds.

There is one function per mode: `group_step` (exact), `group_prefix` (window) and `group_epoch`
(epoch). A step has ranks x accumulate groups, each of which becomes one microbatch. accumulate,
the number of microbatches per rank and step, is the configured one, or with "auto" the least
from accumulate_from upwards with which all samples fit their budgets.

No sample is carried from one window to the next: mode `window` uses a prefix of the samples it
is given, so a resume needs only the ordinal at which the next window starts.
"""

from dataclasses import replace

import msgspec
import numpy as np

from .grouping.by_name import group_samples
from .grouping.groups import split_largest
from .grouping.tall_row import waiting, with_tall_row
from .kernels.arrays import Int64, Mask
from .problem.config import PlanConfig
from .problem.loads import budget_array, common_unit, oversized
from .problem.shuffle import derive_seed, permutation

# A window of this many steps and samples is balanced as well as a longer one would be.
ENOUGH_STEPS = 4
ENOUGH_SAMPLES = 4096

# Budgets decide what a step of mode `window` holds, up to a part in 2**5 more than was asked for.
ROOM = 5

# First guess of groups needed per group of the lower bound, in 1/1000, and the number of samples
# that are grouped on trial to improve on it.
_FIRST_GUESS = 1023
_PILOT = 4096


class StepGroups(msgspec.Struct, frozen=True):
    """The groups of a window's samples, and which of them each step uses.

    group_of (used,): each used sample's group, -1 for none; steps: arrays of group numbers.
    """

    group_of: Int64
    steps: tuple[Int64, ...]

    @property
    def used(self) -> int:
        """Number of the window's samples that the steps use up."""
        return len(self.group_of)


def group_step(config: PlanConfig, costs: Int64, seed: int, step: int) -> StepGroups:
    """Group all samples (n, resources) into one step, with accumulate="auto" raised as needed.

    Where neither empty microbatches nor spares are allowed, the few samples that do not divide by
    the ranks are in no group if there would be an empty one. Raises ValueError, naming the smallest
    accumulate found, if a fixed one does not suffice.
    """
    over = oversized(costs, budget_array(config.budgets))
    configured = accumulate = config.first_accumulate
    while True:
        group_of, groups = _group(config, costs, over, config.ranks * accumulate, seed)
        if groups <= config.ranks * accumulate:
            break
        accumulate = max(accumulate + 1, -(-groups // config.ranks))
    if accumulate > configured and config.accumulate != "auto":
        cure = 'set that, "auto", larger budgets, or fewer samples_per_step'
        # Under balance="auto" a larger accumulate makes larger steps, which need one still larger.
        # Smaller microbatches fit at the latest when they are of one sample.
        size = max(1, len(costs) // (config.ranks * accumulate))
        smaller = f'under balance="auto", which keeps batch_size, set batch_size={size}'
        if config.last_step != "whole":
            cure = f"{smaller}, or larger budgets"
        elif config.counts is not None:
            cure = f"{smaller}; else {cure}"
        raise ValueError(
            f"step {step}: {len(costs)} samples do not fit the budgets in {config.ranks} ranks x "
            f"{configured} microbatches; the smallest accumulate found is {accumulate}: {cure}"
        )
    may_be_empty = config.empty_microbatches or config.spares
    if config.ranks * accumulate > len(costs) and not may_be_empty:
        # Only "auto" gets here. With a multiple of the ranks there are as many microbatches at
        # most as samples.
        left_out = len(costs) % config.ranks
        fewer = group_step(config, costs[:-left_out], seed, step)
        return StepGroups(np.append(fewer.group_of, np.full(left_out, -1)), fewer.steps)
    chosen = np.arange(groups, dtype=np.int64)
    if groups < config.ranks * accumulate:
        sizes = _sum_costs(costs)
        group_of, chosen = split_largest(sizes, group_of, chosen, config.ranks * accumulate)
    return StepGroups(_allow_tall_row(config, costs, group_of, accumulate, seed), (chosen,))


def group_last(config: PlanConfig, costs: Int64, seed: int, step: int) -> StepGroups:
    """Group an epoch's last samples (n, resources), fewer than a step has, by config.last_step.

    Those that are left out are the last ones. Raises ValueError as `group_step` does.
    """
    used, rows = config.last_kept(len(costs)), config.last_rows(len(costs))
    groups = config.ranks * rows
    if config.grouping == "fixed":
        # In the order given, cut into groups whose counts differ by one at most.
        sizes = np.full(groups, used // groups) + (np.arange(groups) < used % groups)
        grouped = StepGroups(np.repeat(np.arange(groups), sizes), (np.arange(groups),))
    else:
        fewer = replace(config, accumulate=rows, empty_microbatches=True)
        grouped = group_step(fewer, costs[:used], seed, step)
    return StepGroups(np.append(grouped.group_of, np.full(len(costs) - used, -1)), grouped.steps)


def _allow_tall_row(
    config: PlanConfig, costs: Int64, group_of: Int64, accumulate: int, seed: int
) -> Int64:
    """Return groups with one tall row instead, where ranks would wait less for giant samples."""
    waits_in_rows = config.waits == "microbatch" and config.partition == "multi_resource"
    ours = config.grouping == "balanced" and config.ordering == "given"
    ours = ours and not config.fixes_step_size and config.ranks > 1
    if not (ours and waits_in_rows) or config.limited:
        return group_of
    tall = with_tall_row(costs, config.ranks, accumulate, seed)
    if tall is None or waiting(costs, tall, config.ranks) >= waiting(costs, group_of, config.ranks):
        return group_of
    return tall


def group_prefix(config: PlanConfig, costs: Int64, seed: int) -> StepGroups:
    """Group a prefix of samples (n, resources) into whole steps, at most as many as are enough.

    A step holds what its budgets hold; where that is clearly more than samples_per_step, it holds
    samples_per_step on average. Returns no step if all samples together do not fill one.
    """
    over = oversized(costs, budget_array(config.budgets))
    bound = _bound_groups(config, costs, over)
    guess = 0 if config.fixes_step_size else _guess_groups(config, costs, over, bound, seed)
    needed = bound * guess // 1000
    per_step = config.least_microbatches
    size = config.samples_per_step
    # Budgets with room for clearly more than the samples asked for do not decide; the number does.
    loose = config.fixes_step_size or (
        config.grouping != "fixed"
        and len(costs) * per_step > int(needed[-1]) * (size + (size >> ROOM))
    )
    steps = len(costs) // size if loose else int(needed[-1]) // per_step
    if ENOUGH_STEPS * size >= ENOUGH_SAMPLES:
        steps = min(steps, ENOUGH_STEPS)
    parts = steps * per_step
    used = steps * size if loose else int(np.searchsorted(needed, parts, side="right"))
    least = 1
    if not config.empty_microbatches:
        # Each microbatch needs a sample, and one that is refused is in none.
        usable = np.cumsum(~over | (config.oversize != "refuse"))
        parts = min(parts, int(usable[used - 1]) // per_step * per_step) if used else 0
        least = int(np.searchsorted(usable, parts)) + 1
    if not parts:
        return StepGroups(np.empty(0, dtype=np.int64), ())
    while True:
        group_of, groups = _group(config, costs[:used], over[:used], parts, seed)
        if groups <= parts:
            break
        # The guess was too low: take a little less than the prefix that would fit in proportion.
        used = max(least, min(used - 1, used * parts * 1023 // (1024 * groups)))
    chosen = np.arange(groups, dtype=np.int64)
    group_of, chosen = split_largest(_sum_costs(costs[:used]), group_of, chosen, parts)
    return _cut_to_steps(config, costs[:used], group_of, chosen, seed)


def group_epoch(config: PlanConfig, costs: Int64, seed: int) -> StepGroups:
    """Group all samples (n, resources) at once and spread the groups over steps.

    The last, partial step is filled up by splitting groups, or dropped with drop_last.
    """
    over = oversized(costs, budget_array(config.budgets))
    parts = _bound_of_all(config, costs, over)
    group_of, groups = _group(config, costs, over, parts, seed, refine_up_to=len(costs))
    if not groups:
        # All samples are refused: a step of none names them.
        return StepGroups(group_of, (np.arange(config.least_microbatches),))
    return _cut_to_steps(config, costs, group_of, np.arange(groups, dtype=np.int64), seed)


def _guess_groups(config: PlanConfig, costs: Int64, over: Mask, bound: Int64, seed: int) -> int:
    """Return about how many groups are needed per group of the lower bound, in 1/1000.

    Measured on the first samples where there are many more of them, so that it costs little.
    """
    if len(costs) < 3 * _PILOT:
        return _FIRST_GUESS
    few = int(bound[_PILOT - 1])
    _, groups = _group(config, costs[:_PILOT], over[:_PILOT], few, seed, refine_up_to=0)
    return max(_FIRST_GUESS, groups * 1000 // max(1, few) + 1)


def _cut_to_steps(
    config: PlanConfig, costs: Int64, group_of: Int64, chosen: Int64, seed: int
) -> StepGroups:
    """Shuffle groups and cut them into steps; the last, partial one is filled up or dropped."""
    size = config.least_microbatches
    # Groups that were made to run side by side, one on each rank, stay together.
    block = config.ranks if config.plans_rows else 1
    whole = len(chosen) // block
    order = permutation(whole, derive_seed(seed, 1), 0)
    blocks = chosen[: whole * block].reshape(whole, block)[order]
    shuffled = np.concatenate([blocks.ravel(), chosen[whole * block :]])
    steps = [shuffled[begin : begin + size] for begin in range(0, len(shuffled), size)]
    if steps and len(steps[-1]) < size:
        last = steps.pop()
        if config.keeps_last(int(np.isin(group_of, last).sum())):
            group_of, last = split_largest(_sum_costs(costs), group_of, last, size)
            steps.append(last)
    return StepGroups(group_of, tuple(steps))


def _bound_groups(config: PlanConfig, costs: Int64, over: Mask) -> Int64:
    """Return a lower bound on the groups of each prefix: int64 (n,), never falling."""
    if config.grouping == "fixed":
        size = config.batch_size or 1
        return np.arange(size, len(costs) + size, dtype=np.int64) // size
    grouped = costs.copy()
    grouped[over] = 0
    return _bound(config, np.cumsum(grouped, axis=0), np.cumsum(over))


def _bound_of_all(config: PlanConfig, costs: Int64, over: Mask) -> int:
    """Return the last of _bound_groups: what takes all samples, without those of fewer."""
    if config.grouping == "fixed":
        return -(-len(costs) // (config.batch_size or 1))
    sums = costs.sum(axis=0) - costs[over].sum(axis=0)
    return int(_bound(config, sums[None], np.array([np.count_nonzero(over)]))[0])


def _bound(config: PlanConfig, sums: Int64, over: Int64) -> Int64:
    """Return a lower bound on the groups of samples with these sums (n, resources).

    over: how many are over budget, and in none of the sums.
    """
    inside: Int64 = np.max(-(-sums // budget_array(config.budgets)), axis=1)
    return inside + over * (config.oversize == "alone")


def _group(
    config: PlanConfig, costs: Int64, over: Mask, parts: int, seed: int,
    refine_up_to: int | None = None,
) -> tuple[Int64, int]:  # fmt: skip
    """Return each sample's group and the number of groups, about `parts` of them.

    A sample over budget is alone, or in no group (-1) if it is refused. refine_up_to: as in
    group_samples; by default `parts`, since with more groups the caller tries again.
    """
    if config.plans_rows and config.oversize == "alone":
        over = np.zeros_like(over)  # a row of like microbatches has a place for them too
    inside, outside = np.flatnonzero(~over), np.flatnonzero(over)
    alone = len(outside) if config.oversize == "alone" else 0
    group_of, groups = np.full(len(costs), -1, dtype=np.int64), 0
    if len(inside):
        shared = max(1, parts - alone)
        limit = shared if refine_up_to is None else refine_up_to
        grouping = group_samples(config, costs[inside], shared, seed, limit)
        groups = grouping.groups
        if config.fixes_step_size and groups > shared:
            return group_of, groups  # of no use: the caller tries again
        group_of[inside] = grouping.group_of
    if alone:
        group_of[outside] = groups + np.arange(alone)
    return group_of, groups + alone


def _sum_costs(costs: Int64) -> Int64:
    """Return one number per sample (n,): the sum of its costs in a common unit."""
    sizes: Int64 = common_unit(costs, 1).sum(axis=1)
    return sizes
