"""Chooses which bucket each row of a step's microbatches is filled to, where they are padded.

Rows filled alike are all padded to the bucket above their mean, which for two buckets may be half
of what is computed. So some rows are filled to the bucket above and the others to the one below,
such that all together hold the step: what is padded is less than the distance of two buckets in one
row, and not in each. Research of this project.
"""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig

# Room beside what samples need, since they do not fill buckets to the last: a part in 2**_SLACK.
_SLACK = 8
# Choices that are tried, each with a row more in the larger bucket.
TRIES = 3


def blocked(config: PlanConfig, costs: Int64, groups: int, more: int) -> Int64 | None:
    """Return what of each group's budget is to stay free: int64 (groups, resources), or None.

    costs (n, resources) of all samples; more: so many rows more go to the larger bucket. None where
    all groups are to be filled alike.

    >>> config = PlanConfig(1, 6, 2, ("n",), (8,), buckets=(("n", (4, 8)),), oversize="refuse")
    >>> blocked(config, np.full((11, 1), 1), 2, 0).tolist()
    [[4], [0]]
    """
    free = np.zeros((groups, len(config.resources)), dtype=np.int64)
    width = config.ranks if groups % config.ranks == 0 else 1
    for column, borders in config.sizing.buckets:
        need = int(costs[:, column].sum())
        need += need >> _SLACK
        below = [border for border in borders if border * groups < need]
        if not below or len(below) == len(borders):
            continue  # all fit the smallest, or need the largest
        low, high = below[-1], borders[len(below)]
        large = (-(-(need - low * groups) // ((high - low) * width)) + more) * width
        # The last are filled first, when the largest samples are placed.
        free[: max(0, groups - large), column] = high - low
    return free if free.any() else None
