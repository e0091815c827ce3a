"""Costs as integers: budgets, sums over groups, a common unit, and scaled costs.

Scaled, resources are comparable and squares fit in 64 bits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..kernels.arrays import Int64

UNLIMITED = 2**62
UNIT = 2**20
_MOST = 2**40


def budget_array(budgets: Sequence[int | None]) -> Int64:
    """Return budgets as int64 (resources,), None as UNLIMITED.

    >>> budget_array([9, None]).tolist() == [9, UNLIMITED]
    True
    """
    return np.array(
        [UNLIMITED if b is None else min(b, UNLIMITED) for b in budgets], dtype=np.int64
    )


def oversized(costs: Int64, budgets: Int64) -> npt.NDArray[np.bool_]:
    """Return a mask (n,) of the samples that exceed a budget alone.

    >>> oversized(np.array([[3, 1], [10, 0]]), budget_array([9, None])).tolist()
    [False, True]
    """
    return np.asarray((costs > budgets).any(axis=1))


def least_groups(costs: Int64, budgets: Int64) -> int:
    """Return the lower bound on groups: the sums over the budgets, plus one per oversize sample.

    >>> least_groups(np.array([[5, 0], [5, 0], [99, 0]]), budget_array([9, None]))
    3
    """
    over = oversized(costs, budgets)
    sums = costs[~over].sum(axis=0)
    fitting = int(np.max(-(-sums // budgets))) if costs.shape[1] else 0
    return int(over.sum()) + max(fitting, int(not over.all()))


def group_loads(costs: Int64, group_of: Int64, groups: int) -> Int64:
    """Return int64 (groups, resources): the sums of costs by group; -1 is in no group.

    >>> group_loads(np.array([[1], [2], [4]]), np.array([0, 1, 0]), 3).tolist()
    [[5], [2], [0]]
    """
    loads = np.zeros((groups, costs.shape[1]), dtype=np.int64)
    inside = group_of >= 0
    numbers, inner = group_of[inside], costs[inside]
    for column in range(costs.shape[1]):
        np.add.at(loads[:, column], numbers, inner[:, column])
    return loads


def count_kinds(values: Int64) -> list[int]:
    """Return how many different values each column has.

    As `numpy.unique`, at whose first call numpy imports more than a plan takes.

    >>> count_kinds(np.array([[1, 2], [3, 2], [1, 2]]))
    [2, 1]
    """
    changes = np.count_nonzero(np.diff(np.sort(values, axis=0), axis=0), axis=0)
    return [int(count) + min(1, len(values)) for count in changes]


def alike(loads: Int64, ranks: int) -> Int64:
    """Return int64 (rows, ranks): groups sorted so that those of a row have like loads.

    The coarsest resource (fewest different values) sorts first, the others break ties in the
    opposite direction: a group low in one is often at its budget in another.

    >>> alike(np.array([[9, 10], [8, 30], [9, 20], [8, 40]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    kinds = count_kinds(loads)
    columns = sorted(range(loads.shape[1]), key=lambda column: (kinds[column], column))
    keys = [loads[:, column] for column in columns[:0:-1]] + [-loads[:, columns[0]]]
    empty = loads.sum(axis=1) == 0
    return np.lexsort((*keys, empty)).reshape(-1, ranks)


def common_unit(costs: Int64, parts: int) -> Int64:
    """Return costs (n, resources) in one unit: UNIT is the mean load of one of `parts` parts.

    Integers throughout; shares too large to matter are cut at 2**40, so sums stay in 64 bits.

    >>> (common_unit(np.array([[1, 3000], [3, 1000]]), parts=1) * 4 // UNIT).tolist()
    [[1, 3], [3, 1]]
    """
    scaled = np.zeros_like(costs)
    for column in range(costs.shape[1]):
        values = costs[:, column]
        mean = int(values.sum()) // max(1, parts)
        shift = max(0, int(values.max(initial=0)).bit_length() - 40)
        unit = max(1, mean >> shift)
        scaled[:, column] = np.minimum((values >> shift) * UNIT // unit, _MOST)
    return scaled


# Scaled, an item stays below 2**27, and the mean load of a part below 2**21.
_LARGEST_BITS, _MEAN_BITS = 27, 21
_LARGEST = 2**_LARGEST_BITS


def scale_costs(costs: Int64, budgets: Int64, parts: int) -> tuple[Int64, Int64]:
    """Return costs (n, resources) and budgets in units of about 2**20 per mean part load.

    Every resource is multiplied by an integer, or, where costs are huge, divided by a power of
    two with costs rounded up and budgets down: what fits after scaling fits before. A single
    item stays below 2**27, so that its square and sums of squares stay in 64 bits.

    >>> scale_costs(np.array([[2], [6]]), np.array([9]), parts=4)[0].tolist()
    [[1048576], [3145728]]
    """
    result, limits = np.empty_like(costs), np.empty_like(budgets)
    for column in range(costs.shape[1]):
        values, budget = costs[:, column], int(budgets[column])
        largest = int(values.max(initial=0))
        whole = max(1, int(values.sum()))
        # a power of two to divide by
        shift = max(
            0, (whole // parts).bit_length() - _MEAN_BITS, largest.bit_length() - _LARGEST_BITS
        )
        by_mean, by_largest = (
            UNIT * parts // max(1, whole >> shift),
            _LARGEST // max(1, largest >> shift),
        )
        factor = max(1, min(by_mean, by_largest))
        up = (1 << shift) - 1
        result[:, column] = ((values + up) >> shift) * factor
        limits[column] = min(UNLIMITED, (budget >> shift) * factor)
    return result, limits


def in_units(loads: Int64, tight: Int64, limits: Int64) -> Int64:
    """Return loads (groups, resources) in the units of scaled budgets `tight`; 0 without a budget.

    >>> in_units(np.array([[3, 5]]), np.array([90, UNLIMITED]), budget_array([9, None])).tolist()
    [[30, 0]]
    """
    scaled = np.zeros_like(loads)
    for column in np.flatnonzero(limits < UNLIMITED):
        whole, budget = int(tight[column]), int(limits[column])  # products exceed 64 bits
        scaled[:, column] = [whole * load // budget for load in loads[:, column].tolist()]
    return scaled


def order_by_size(costs: Int64, small: Int64, coarse: bool = False) -> Int64:
    """Return the samples' numbers by their sum in scaled costs `small`, largest first.

    Only samples of equal costs keep the order given, so results computed in this order do not
    depend on it. With coarse, all samples within an eighth of a part's mean load keep the order
    given, so another shuffle of the same samples gives another result.

    >>> costs = np.array([[1, 2], [3, 3], [2, 1], [2, 1]])
    >>> order_by_size(costs, costs).tolist()
    [1, 0, 2, 3]
    """
    if coarse:
        return np.argsort(-(small.sum(axis=1) // (UNIT // 8)), kind="stable")
    keys = [-costs[:, column] for column in range(costs.shape[1])]
    return np.lexsort((*keys, -small.sum(axis=1)))
