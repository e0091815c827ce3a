"""Plan several small windows at once, where nothing about them is out of the ordinary.

Most of what a plan of a few dozen samples costs are numpy's calls, not the loops. So windows of one
step, of one rank, are planned together. Plans are those of `Planner.plan`, bit by bit.

A window is *plain* if none of its samples is over budget, its microbatches suffice, and its costs
need not be divided to be scaled. Others, which may need more microbatches or be in error, are left
to `plan`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from .grouping.each_window import balanced_each
from .kernels.arrays import Int64
from .problem.config import GlobalBatch, Microbatch, PlanConfig, Planned, Window
from .problem.costs import MAX_COST
from .problem.loads import budget_array, group_loads
from .problem.shuffle import derive_seed
from .steps import first_accumulate

# Windows of more samples are planned one by one: their numbers matter more than numpy's calls.
MOST_SAMPLES = 2048


def makes_plain_windows(config: PlanConfig) -> bool:
    """Return whether windows of a configuration may be plain.

    One rank has nothing to even out with others, and takes its microbatches in the order of size.
    """
    is_default = config.grouping == "balanced" and config.partition == "multi_resource"
    is_one_step = config.mode == "exact" and config.samples_per_step <= MOST_SAMPLES
    has_extras = config.padded or config.equal_counts or config.align or config.time_ns
    # Else a step may be left with empty microbatches, or leave samples out.
    is_small = first_accumulate(config) <= config.samples_per_step
    return bool(
        is_default
        and is_one_step
        and is_small
        and config.ranks == 1
        and config.ordering == "given"
        and config.limited
        and not has_extras
    )


def plan_plain_windows(
    config: PlanConfig, columns: Sequence[int], windows: Window
) -> tuple[Planned, ...]:
    """Return plans of the plain windows that several in a row begin with.

    windows: those in a row as one, of whole steps. columns: the resources that are balanced.
    """
    every, size, parts = windows.costs, config.samples_per_step, first_accumulate(config)
    if every.dtype != np.int64 or not len(every) or every.min() < 0 or every.max() > MAX_COST:
        return ()
    costs = np.ascontiguousarray(every[:, columns])
    limits = budget_array([config.budgets[column] for column in columns])
    starts = range(windows.start, windows.start + len(costs), size)
    seeds = [derive_seed(config.seed, windows.epoch, start) for start in starts]
    group_of = balanced_each(costs.reshape(-1, size, len(columns)), limits, parts, seeds)
    refused = config.oversize == "refuse"
    return tuple(
        Planned((GlobalBatch(windows.step + number, (microbatches,)),), size, (), refused)
        for number, microbatches in enumerate(_microbatches(costs, group_of, parts, windows.start))
    )


def _microbatches(
    costs: Int64, group_of: Int64, parts: int, start: int
) -> Iterator[tuple[Microbatch, ...]]:
    """Yield the microbatches of each window in the order in which the rank takes them.

    group_of (windows, n): the group of each sample from ordinal `start` on.
    """
    windows = len(group_of)
    flat = (group_of + parts * np.arange(windows)[:, None]).ravel()
    loads = group_loads(costs[: flat.size], flat, windows * parts)
    sizes = np.bincount(flat, minlength=windows * parts).reshape(windows, parts).tolist()
    # Grouped by window and group; within a group in the order of the epoch.
    ordinals = iter((np.argsort(flat, kind="stable") + start).tolist())
    by_window = loads.reshape(windows, parts, costs.shape[1]).tolist()
    for own, rows in zip(sizes, by_window, strict=True):
        made = [Microbatch(tuple(islice(ordinals, size))) for size in own]
        yield tuple([made[group] for group in _by_size(rows)])


def _by_size(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the groups of these loads in the order of `loads.alike`, for one rank.

    >>> _by_size([[8, 10], [9, 30], [0, 0], [9, 20], [8, 40]])
    [3, 1, 0, 4, 2]
    """
    kinds = [len(set(column)) for column in zip(*rows, strict=True)]
    coarsest, *others = sorted(range(len(kinds)), key=kinds.__getitem__)

    def key(group: int) -> tuple[int, ...]:
        row = rows[group]
        return not any(row), -row[coarsest], *[row[column] for column in others]

    return sorted(range(len(rows)), key=key)
