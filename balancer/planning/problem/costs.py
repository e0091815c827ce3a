"""Checks the costs that a plan is made of; workers/sources/costs.py checks those of a sample."""

import numpy as np

from ..kernels.arrays import Int64

# Four million samples of this cost can be summed in int64, with room for a factor.
MAX_COST = 2**40


class OversizeError(ValueError):
    """A sample over budget where oversize is "error": its ordinal, costs and budgets."""

    def __init__(self, ordinal: int, reason: str) -> None:
        super().__init__(ordinal, reason)
        self.ordinal = ordinal
        self.reason = reason

    def __str__(self) -> str:
        return f"the sample at {self.ordinal} of the epoch's order {self.reason}"


def check_costs(costs: Int64, resources: int) -> Int64:
    """Return costs as contiguous int64 (n, resources); raise ValueError if they cannot be planned.

    >>> check_costs(np.array([[1, 2], [0, 4]]), 2).sum(0).tolist()
    [1, 6]
    """
    costs = np.ascontiguousarray(costs)
    if costs.ndim != 2 or costs.shape[1] != resources:
        raise ValueError(f"costs have shape {costs.shape}, needed are (samples, {resources})")
    if costs.size and (costs.dtype.kind not in "iu" or costs.min() < 0):
        bad = np.ones(costs.shape, bool) if costs.dtype.kind not in "iu" else costs < 0
        row, column = map(int, np.argwhere(bad)[0])
        raise ValueError(
            f"sample '{row}': cost '{column}' is {costs[row, column]!s:.80}, allowed are whole "
            "numbers from 0 to 2**40: round it, or use a larger unit"
        )
    if costs.size and int(costs.max()) * len(costs) >= 2**62:
        raise ValueError(
            f"the largest of {len(costs)} costs is {costs.max()}; the product of both must stay "
            "below 2**62: use a larger unit"
        )
    return costs.astype(np.int64, copy=False)
