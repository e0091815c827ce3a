"""Grouping strategies by the names that a configuration uses."""

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig
from .balanced import balanced
from .counted import device, fixed, length, random
from .isf import isf
from .result import Grouping


def group_samples(
    config: PlanConfig, costs: Int64, parts: int, seed: int, most: int | None = None
) -> Grouping:
    """Group samples (n, resources), none over budget, into about `parts` groups within budgets.

    With more than `most` groups the caller asks again, so the strategy may leave out refinement.
    """
    size = config.batch_size or 1
    if config.grouping == "fixed":
        return fixed(len(costs), size)
    if config.grouping == "random":
        return random(len(costs), size, seed)
    if config.grouping == "length":
        return length(costs, size, seed)
    if config.grouping == "device":
        return device(costs, size, config.ranks, seed)
    if config.grouping == "isf":
        return isf(costs, config.budgets, seed=seed)
    # the same samples come every epoch: without this they would be grouped as before
    anew = config.mode == "epoch"
    return balanced(costs, config.budgets, parts, seed, most=most, anew=anew)
