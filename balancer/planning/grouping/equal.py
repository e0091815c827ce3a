"""Grouping with equal counts: even loads, and the same number of samples in every microbatch."""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import budget_array, group_loads
from ..problem.scale import order_by_size, scale_costs
from .balanced import EXCESS_FROM, FREE_ROUNDS, refine
from .result import GroupingResult


def equal(costs: Int64, budgets: tuple[int | None, ...], parts: int, seed: int) -> GroupingResult:
    """Group samples (n, resources) into `parts` groups whose counts differ by one at most.

    Largest first, to and fro over the groups; then two-ended swaps, which change no count
    (research of this project, no bound proven). Returns parts + 1 groups where one is over budget.

    >>> equal(np.array([[5], [4], [3], [6]]), (None,), parts=2, seed=0).group_of.tolist()
    [1, 1, 0, 0]
    """
    limits = budget_array(budgets)
    small, tight = scale_costs(costs, limits, max(1, parts))
    order = order_by_size(costs, small)
    turn, place = np.divmod(np.arange(len(costs)), parts)
    inner = np.where(turn % 2 == 0, place, parts - 1 - place)
    inner = refine(
        small[order], tight, inner, parts, FREE_ROUNDS, seed, moves=False, excess_from=EXCESS_FROM
    )
    group_of = np.empty(len(costs), dtype=np.int64)
    group_of[order] = inner
    over = (group_loads(costs, group_of, parts) > limits).any()
    nothing = np.empty(0, dtype=np.int64)
    return GroupingResult(group_of, parts + int(over), nothing, nothing)
