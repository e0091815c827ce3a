"""The grouping strategies, in a table by the name that a configuration gives."""

from collections.abc import Callable

import msgspec
import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig
from .balanced import balanced, equal
from .bucket_rows import TRIES, blocked
from .groups import GroupingResult
from .padded import padded


def fixed(samples: int, batch_size: int) -> GroupingResult:
    """Group samples in the order given; the last group may be smaller.

    >>> fixed(5, batch_size=2).group_of.tolist()
    [0, 0, 1, 1, 2]
    """
    group_of = np.arange(samples, dtype=np.int64) // batch_size
    return GroupingResult(group_of, -(-samples // batch_size))


class GroupingRequest(msgspec.Struct, frozen=True):
    """Samples to group: costs (n, resources), none over budget, into about `wanted` groups.

    A strategy may skip refining a result of more than refine_up_to groups (None: no limit),
    since the caller will discard it and ask again with other samples.
    """

    costs: Int64
    wanted: int
    seed: int
    refine_up_to: int | None = None


def group_samples(config: PlanConfig, request: GroupingRequest) -> GroupingResult:
    """Return groups within budgets, made by the strategy that the configuration names."""
    return BY_NAME[config.grouping](config, request)


def _balanced(config: PlanConfig, request: GroupingRequest) -> GroupingResult:
    if config.padded:
        return padded(config, request.costs, request.wanted)
    if config.equal_counts:
        return equal(request.costs, config.budgets, request.wanted, request.seed)
    for more in range(TRIES if config.buckets else 0):
        free = blocked(config, request.costs, request.wanted, more)
        if free is None:
            break
        found = balanced(
            request.costs, config.budgets, request.wanted, request.seed, blocked=free,
            refine_up_to=request.wanted,
        )  # fmt: skip
        if found.groups <= request.wanted:
            return found
    return balanced(
        request.costs,
        config.budgets,
        request.wanted,
        request.seed,
        refine_up_to=request.refine_up_to,
        # Mode "epoch" gets the same samples every epoch: only a coarse order makes the groups
        # depend on the epoch's shuffle.
        coarse=config.mode == "epoch",
    )


def _isf(config: PlanConfig, request: GroupingRequest) -> GroupingResult:
    from .isf import isf  # here: few plans use it

    return isf(request.costs, config.budgets, seed=request.seed)


# To add a strategy, add a line here and its name to GroupingName in problem/options.py.
BY_NAME: dict[str, Callable[[PlanConfig, GroupingRequest], GroupingResult]] = {
    "balanced": _balanced,
    "isf": _isf,
    "fixed": lambda config, request: fixed(len(request.costs), config.batch_size or 1),
}
