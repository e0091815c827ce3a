"""Grouping by iterative sampling and filtering (ISF), the strategy that OmniBal publishes."""

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import sample_and_filter, shuffle
from ..problem.costs import check_costs
from ..problem.loads import budget_array, oversized
from ..problem.shuffle import derive_seed
from .groups import GroupingResult


def isf(
    costs: Int64, budgets: Sequence[int | None], targets: Sequence[int | None] | None = None,
    iterations: int = 10, seed: int = 0, flush: bool = True,
) -> GroupingResult:  # fmt: skip
    """Group samples (n, resources): next-fit in random order, keep full groups, repeat.

    OmniBal (2025), §4.1, Algorithm 1; no bound. A group is full when any resource reaches its
    target (default: 31/32 of the budget). Samples left after the iterations are reported as
    left_over and, with flush, grouped by one more pass without the filter, as in the published
    code. That code drops samples over budget; this function reports them and, with flush, gives
    each a group of its own.

    >>> isf(np.array([[5], [4], [9], [10]]), budgets=[9]).group_of.tolist()
    [0, 0, 1, 2]
    """
    costs = check_costs(costs, len(budgets))
    limits = budget_array(budgets)
    full = limits - limits // 32 if targets is None else budget_array(targets)
    over = oversized(costs, limits)
    group_of = np.full(len(costs), -1, dtype=np.int64)
    items = np.flatnonzero(~over)
    groups, items = _iterate(costs, limits, full, iterations, seed, items, group_of)
    left_over, oversize = np.sort(items), np.flatnonzero(over)
    if flush:
        nothing = np.zeros_like(limits)
        again = derive_seed(seed, 1)
        groups, _ = _iterate(costs, limits, nothing, 1, again, items, group_of, groups)
        group_of[oversize] = groups + np.arange(len(oversize))
        groups += len(oversize)
    return GroupingResult(group_of, groups, left_over, oversize)


def _iterate(
    costs: Int64, budgets: Int64, targets: Int64, iterations: int, seed: int, items: Int64,
    group_of: Int64, groups: int = 0,
) -> tuple[int, Int64]:  # fmt: skip
    """Run sampling and filtering; return (groups, samples left) and fill group_of."""
    for iteration in range(iterations):
        shuffle(items, derive_seed(seed, 0, iteration))
        groups, left = sample_and_filter(items, costs, budgets, targets, groups, group_of)
        items = items[:left].copy()
        if not left:
            break
    return groups, items
