"""Groups samples by the strategy that a configuration names."""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig
from .balanced import balanced, equal
from .groups import GroupingResult

# Room beside what samples need, since they do not fill buckets to the last: a part in 2**_SLACK.
_SLACK = 8
# Choices that are tried, each with a row more in the larger bucket.
TRIES = 3


def fixed(samples: int, batch_size: int) -> GroupingResult:
    """Group samples in the order given; the last group may be smaller.

    >>> fixed(5, batch_size=2).group_of.tolist()
    [0, 0, 1, 1, 2]
    """
    group_of = np.arange(samples, dtype=np.int64) // batch_size
    return GroupingResult(group_of, -(-samples // batch_size))


def blocked(config: PlanConfig, costs: Int64, groups: int, more: int) -> Int64 | None:
    """Return what of each group's budget is to stay free: int64 (groups, resources), or None.

    Rows filled alike are all padded to the bucket above their mean, which for two buckets may be
    half of what is computed. So some rows are filled to the bucket above and the others to the one
    below, such that all together hold the step: what is padded is less than the distance of two
    buckets in one row, and not in each. Research of this project.

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


def group_samples(
    config: PlanConfig, costs: Int64, parts: int, seed: int, refine_up_to: int
) -> GroupingResult:
    """Return about `parts` groups within budgets, by the strategy that the configuration names.

    costs (n, resources): of samples of which none is over budget. A result of more than
    refine_up_to groups may be left unrefined, since the caller will discard it and ask again with
    other samples.
    """
    if config.grouping == "fixed":
        return fixed(len(costs), config.batch_size or 1)
    if config.grouping == "isf":
        from .isf import isf  # here: few plans use it

        return isf(costs, config.budgets, seed=seed)
    if config.padded:
        from .padded import group_padded  # here: most plans add costs up

        return group_padded(config, costs, parts)
    if config.equal_counts:
        return equal(costs, config.budgets, parts, seed)
    for more in range(TRIES if config.buckets else 0):
        free = blocked(config, costs, parts, more)
        if free is None:
            break
        grouping = balanced(costs, config.budgets, parts, seed, refine_up_to=parts, blocked=free)
        if grouping.groups <= parts:
            return grouping
    # Mode "epoch" gets the same samples every epoch: only a coarse order makes the groups depend
    # on the epoch's shuffle.
    is_coarse = config.mode == "epoch"
    return balanced(costs, config.budgets, parts, seed, refine_up_to=refine_up_to, coarse=is_coarse)
