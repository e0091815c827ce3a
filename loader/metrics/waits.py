"""How long ranks wait for each other in a step of the plan: planned, delivered, in random order.

Counted from the costs that the plan was made of, not timed, by the model that `analyze` forecasts
with: ranks wait for the slowest in the encoder and in the language model of every microbatch, or
once a step where Balance(waits="step") says so. Random order deals the same samples out in the
order in which they came: as many of them to each microbatch.
"""

from collections.abc import Collection
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.options import ENCODER
from ...balancer.planning.problem.work import resource_times
from .families import DELIVERED, FORECAST, RANDOM


class StepWork(NamedTuple):
    """A step's time in a unit of its own: until its slowest ranks are done, and a rank's work.

    by_rank (ranks,): the work of each; the mean of it is `work`. imbalance: of each resource's
    costs, the most of a rank over the mean of all; not of a random order.
    """

    time: float
    work: float
    by_rank: npt.NDArray[np.float64]
    imbalance: tuple[float, ...] = ()


class _Work(NamedTuple):
    """What of costs is work: the configuration with these resources, and which of them are which.

    Columns of the encoder and of padded work; the others add up in the language model.
    """

    config: PlanConfig
    columns: list[int]
    encoder: list[int]
    padded: list[int]
    others: list[int]


@lru_cache(maxsize=8)
def _work_of(config: PlanConfig) -> _Work:
    columns = config.balanced_columns
    only = config.only(columns)
    padded = [*only.padded_columns]
    encoder = [k for k, name in enumerate(only.resources) if name in ENCODER and k not in padded]
    others = [k for k in range(len(columns)) if k not in (*padded, *encoder)]
    return _Work(only, [*columns], encoder, padded, others)


def step_times(plan: Any, holes: Collection[int], config: PlanConfig) -> dict[str, StepWork]:
    """Return a step's times by kind, in one unit: a PlannedStep, and the ordinals of its holes.

    A step holds nothing in its holes but for FORECAST. What buckets add is not in it.
    """
    ranks = plan.batch.ranks
    # the k-th microbatches of all ranks are side by side
    cells = [rank[k].ordinals for k in range(plan.microbatches) for rank in ranks]
    sizes = [len(each) for each in cells]
    ordinals = np.fromiter(chain.from_iterable(cells), np.int64, sum(sizes))
    group_of = np.repeat(np.arange(len(cells)), sizes)
    work = _work_of(config)
    costs = plan.costs[ordinals - plan.start]
    sized = config.sizing.rounded(costs) if config.multiples else costs
    times = resource_times(work.config, sized[:, work.columns])

    def counted() -> StepWork:
        step = _step_work(times, group_of, len(cells), len(ranks), work, config.waits)
        return step._replace(imbalance=imbalance_of(costs, group_of % len(ranks), len(ranks)))

    forecast = found = counted()
    if holes:
        here = ~np.isin(ordinals, np.array([*holes], np.int64))
        ordinals, costs, times, group_of = (
            each[here] for each in (ordinals, costs, times, group_of)
        )
        found = counted()
    dealt = np.arange(len(ordinals)) * len(cells) // max(1, len(ordinals))
    times = times[np.argsort(ordinals)]
    random = _step_work(times, dealt, len(cells), len(ranks), work, config.waits)
    return {FORECAST: forecast, DELIVERED: found, RANDOM: random}


def imbalance_of(costs: Int64, owners: Int64, ranks: int) -> tuple[float, ...]:
    """Return for each resource the most of a rank over the mean of all; 1 where none has any.

    costs (n, resources): of samples that the ranks `owners` (n,) have.

    >>> imbalance_of(np.array([[2, 0], [1, 0], [1, 0]]), np.array([0, 0, 1]), ranks=2)
    (1.5, 1.0)
    """
    sums = np.zeros((ranks, costs.shape[1]))
    np.add.at(sums, owners, costs)
    means = sums.mean(axis=0)
    ratios = np.divide(sums.max(axis=0), means, out=np.ones_like(means), where=means > 0)
    return tuple(ratios.tolist())


def _step_work(
    times: Int64, group_of: Int64, cells: int, ranks: int, work: _Work, waits: str
) -> StepWork:
    """Return the time of samples of times (n, resources) in the groups (n,) of so many cells."""
    encoder, llm = (  # floats, as they have weights
        np.bincount(group_of, times[:, own].sum(axis=1), cells)
        for own in (work.encoder, work.others)
    )
    if work.padded:
        largest = np.zeros(cells)
        np.maximum.at(largest, group_of, times[:, work.padded].sum(axis=1))
        llm += np.bincount(group_of, minlength=cells) * largest  # type: ignore[arg-type]
    parts = np.stack([encoder, llm]).reshape(-1, ranks)
    by_rank = parts.sum(axis=0)
    slowest = by_rank.max() if waits == "step" else parts.max(axis=1).sum()
    return StepWork(float(slowest), float(by_rank.mean()), by_rank)
