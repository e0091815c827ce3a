"""The grouping strategies, in a table by the name that a configuration gives."""

from collections.abc import Callable

import msgspec

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig
from .balanced import balanced, equal
from .counted import device, fixed, length, random
from .groups import GroupingResult
from .isf import isf
from .padded import padded


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


def _batch_size(config: PlanConfig) -> int:
    return config.batch_size or 1


# To add a strategy, add a line here and its name to GroupingName in problem/balance.py.
BY_NAME: dict[str, Callable[[PlanConfig, GroupingRequest], GroupingResult]] = {
    "balanced": _balanced,
    "isf": lambda config, request: isf(request.costs, config.budgets, seed=request.seed),
    "fixed": lambda config, request: fixed(len(request.costs), _batch_size(config)),
    "random": lambda config, request: random(len(request.costs), _batch_size(config), request.seed),
    "length": lambda config, request: length(request.costs, _batch_size(config), request.seed),
    "device": lambda config, request: device(
        request.costs, _batch_size(config), config.ranks, request.seed
    ),
}
