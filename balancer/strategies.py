"""Grouping strategies by the names that a configuration uses."""

import numpy as np

from .group_isf import isf
from .grouping import Grouping
from .plan import Int64, PlanConfig


def group_samples(config: PlanConfig, costs: Int64, parts: int, seed: int) -> Grouping:  # noqa: ARG001
    """Group samples (n, resources), none over budget, into about `parts` groups within budgets."""
    if config.grouping == "fixed":
        return fixed(len(costs), config.batch_size or 1)
    return isf(costs, config.budgets, seed=seed)


def fixed(samples: int, batch_size: int) -> Grouping:
    """Group samples in order, batch_size at a time; the last group may be smaller.

    >>> fixed(5, batch_size=2).group_of.tolist()
    [0, 0, 1, 1, 2]
    """
    nothing = np.empty(0, dtype=np.int64)
    group_of = np.arange(samples, dtype=np.int64) // batch_size
    return Grouping(group_of, -(-samples // batch_size), nothing, nothing)
