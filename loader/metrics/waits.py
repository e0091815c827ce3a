"""How long ranks wait for each other in a step of the plan: planned, delivered, in random order.

By the model of all forecasts (`balancer/planning/forecast.py`), from the costs that the plan was
made of. Random order deals the same samples out in the order in which they came: as many of them to
each microbatch.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from ...balancer.planning.forecast import StepWork, list_cells, sample_work
from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.config import PlanConfig
from .families import DELIVERED, FORECAST, RANDOM


def step_times(plan: Any, holes: Collection[int], config: PlanConfig) -> dict[str, StepWork]:
    """Return a step's times by kind, in one unit: a PlannedStep, and the ordinals of its holes.

    A step holds nothing in its holes but for FORECAST. What buckets add is not in it.
    """
    ordinals, cell_of, cells = list_cells(plan.batch)
    costs, ranks = plan.costs[ordinals - plan.start], len(plan.batch.ranks)
    work = sample_work(config, costs)

    def counted() -> StepWork:
        step = work.sum_step(cell_of, cells, ranks, config.waits)
        return step._replace(imbalance=measure_imbalance(costs, cell_of % ranks, ranks))

    planned = delivered = counted()
    if holes:
        here = np.flatnonzero(~np.isin(ordinals, np.array([*holes], np.int64)))
        ordinals, costs, cell_of = (column[here] for column in (ordinals, costs, cell_of))
        work = work.take(here)
        delivered = counted()
    dealt = np.arange(len(ordinals)) * cells // max(1, len(ordinals))
    random = work.take(np.argsort(ordinals)).sum_step(dealt, cells, ranks, config.waits)
    return {FORECAST: planned, DELIVERED: delivered, RANDOM: random}


def measure_imbalance(costs: Int64, owners: Int64, ranks: int) -> tuple[float, ...]:
    """Return for each resource the most of a rank over the mean of all; 1 where none has any.

    costs (n, resources): of samples that the ranks `owners` (n,) have.

    >>> measure_imbalance(np.array([[2, 0], [1, 0], [1, 0]]), np.array([0, 0, 1]), ranks=2)
    (1.5, 1.0)
    """
    sums = np.zeros((ranks, costs.shape[1]))
    np.add.at(sums, owners, costs)
    means = sums.mean(axis=0)
    ratios = np.divide(sums.max(axis=0), means, out=np.ones_like(means), where=means > 0)
    return tuple(ratios.tolist())
