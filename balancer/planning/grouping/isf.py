"""Grouping by iterative sampling and filtering, the baseline that OmniBal publishes."""

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import check_costs
from ..problem.loads import budget_array, oversized
from .result import Grouping, mix


def isf(
    costs: Int64,
    budgets: Sequence[int | None],
    targets: Sequence[int | None] | None = None,
    iterations: int = 10,
    seed: int = 0,
    flush: bool = True,
) -> Grouping:
    """Group samples (n, resources): next-fit in random order, keep full groups, repeat.

    OmniBal (2024), §4.1, Algorithm 1; no bound. A group is full when any resource reaches its
    target (default: 31/32 of the budget). What is left after the iterations is reported as
    left_over and, with flush, grouped by one more pass without the filter, as the published code
    does; that code drops samples over budget, here they are reported and flushed alone.

    >>> isf(np.array([[5], [4], [9], [10]]), budgets=[9]).group_of.tolist()
    [0, 0, 1, 2]
    """
    costs = check_costs(costs, len(budgets))
    limits = budget_array(budgets)
    wanted = limits - limits // 32 if targets is None else budget_array(targets)
    over = oversized(costs, limits)
    group_of = np.full(len(costs), -1, dtype=np.int64)
    items = np.flatnonzero(~over)
    groups, items = _iterate(costs, limits, wanted, iterations, seed, items, group_of)
    left_over, oversize = np.sort(items), np.flatnonzero(over)
    if flush:
        nothing = np.zeros_like(limits)
        groups, _ = _iterate(costs, limits, nothing, 1, mix(seed, 1), items, group_of, groups)
        group_of[oversize] = groups + np.arange(len(oversize))
        groups += len(oversize)
    return Grouping(group_of, groups, left_over, oversize)


def _iterate(
    costs: Int64,
    budgets: Int64,
    targets: Int64,
    iterations: int,
    seed: int,
    items: Int64,
    group_of: Int64,
    groups: int = 0,
) -> tuple[int, Int64]:
    """Run sampling and filtering; return (groups, samples left) and fill group_of."""
    from ..kernels.isf import sample_and_filter, shuffle

    for iteration in range(iterations):
        shuffle(items, mix(seed, 0, iteration))
        groups, left = sample_and_filter(items, costs, budgets, targets, groups, group_of)
        items = items[:left].copy()
        if not left:
            break
    return groups, items


def find_budgets(costs: Int64) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return budgets (Q_v, Q_t) and targets (Q'_v, Q'_t) from statistics of costs (n, 2).

    OmniBal (2024), §5.2 and Table 6: Q_t is the longest text, Q_v follows from the mean ratio of
    text to images, Q'_v = Q_v and Q'_t = Q_t - 128. Columns: images (or tiles), tokens. Raises
    ValueError where there is nothing to measure.

    >>> find_budgets(np.array([[1, 500], [2, 1500], [1, 2000]]))
    ((2, 2000), (2, 1872))
    """
    costs = check_costs(costs, 2)
    images, tokens = (int(total) for total in costs.sum(axis=0))
    if not images or not tokens:
        raise ValueError(f"{images} images and {tokens} tokens give no ratio; set budgets by hand")
    longest = int(costs[:, 1].max())
    most = max(int(costs[:, 0].max()), (2 * longest * images + tokens) // (2 * tokens))
    return (most, longest), (most, max(1, longest - 128))
