"""Scaled costs: integers in which resources are comparable and squares fit in 64 bits."""

import numpy as np

from ..kernels.arrays import Int64, Mask
from .loads import UNIT, UNLIMITED

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
            0,
            (whole // parts).bit_length() - _MEAN_BITS,
            largest.bit_length() - _LARGEST_BITS,
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


def scale_each(costs: Int64, budgets: Int64, parts: int) -> tuple[Int64, Int64, Mask]:
    """Return `scale_costs` of several windows at once, and of which of them this is it.

    costs, and those returned: (windows, n, resources); budgets (resources,), those returned
    (windows, resources). A window whose costs are so large that they are to be divided is left to
    `scale_costs`; no cost may exceed `costs.MAX_COST`.

    >>> scale_each(np.array([[[2], [6]]]), np.array([9]), parts=4)[0].tolist()
    [[[1048576], [3145728]]]
    """
    largest, whole = costs.max(axis=1, initial=0), costs.sum(axis=1)
    is_small = (largest >> _LARGEST_BITS == 0) & (whole // parts >> _MEAN_BITS == 0)
    by_mean = UNIT * parts // np.maximum(1, whole)
    factor = np.maximum(1, np.minimum(by_mean, _LARGEST // np.maximum(1, largest)))
    is_limited = budgets <= UNLIMITED // factor  # else the product would not fit in 64 bits
    tight = np.where(is_limited, np.where(is_limited, budgets, 0) * factor, UNLIMITED)
    return costs * factor[:, None], tight, is_small.all(axis=1)


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
