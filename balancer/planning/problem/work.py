"""The work of samples: times in place of costs, and microbatches whose batches are padded.

A padded microbatch costs count x largest, beside what adds up. Where work adds up, and a model says
what each resource takes, times take the place of costs. Ranks wait for each other in the encoder
and in the language model apart, so each keeps its column: what is evened out is its time, the
square of attention included. Budgets limit costs, and stay.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Int64
from .config import PlanConfig
from .loads import common_unit, group_loads
from .metrics import TILE_TOKENS
from .options import ATTENTION_PAIRS, LLM

# A microbatch's time stays below this, so that rows and ranks can be added up in 64 bits.
_MOST_BITS = 56


class SampleTimes(NamedTuple):
    """The time (n,) of each sample, in one unit: in a padded batch, and where costs add up.

    A microbatch takes count x the largest `padded`, and the sum of `added`.
    """

    padded: Int64
    added: Int64


def padded_loads(costs: Int64, group_of: Int64, groups: int, padded: tuple[int, ...]) -> Int64:
    """Return int64 (groups, resources): sums of costs, and count x largest in columns `padded`.

    >>> padded_loads(np.array([[5, 1], [3, 2], [9, 0]]), np.array([0, 0, -1]), 2, (0,)).tolist()
    [[10, 3], [0, 0]]
    """
    loads = group_loads(costs, group_of, groups)
    inside = group_of >= 0
    counts = np.bincount(group_of[inside], minlength=groups)
    for column in padded:
        largest = np.zeros(groups, dtype=np.int64)
        np.maximum.at(largest, group_of[inside], costs[inside, column])
        loads[:, column] = counts * largest
    return loads


def sample_times(config: PlanConfig, costs: Int64) -> SampleTimes:
    """Return the times of samples of costs (n, resources), by config.time_ns.

    Without time_ns a tile counts as 307 tokens; other resources count by their means, alike.
    Integers throughout: where products would not fit in 64 bits, all times lose their last bits.
    """
    times = resource_times(config, costs)
    padded = [name in config.padded for name in config.resources]
    return SampleTimes(
        times[:, np.array(padded)].sum(axis=1), times[:, ~np.array(padded)].sum(axis=1)
    )


def resource_times(config: PlanConfig, costs: Int64) -> Int64:
    """Return int64 (n, resources): what samples take of each resource, as in `sample_times`."""
    weights = dict(config.time_ns)
    if not weights and set(config.resources) <= {"tiles", LLM}:
        weights = {"tiles": TILE_TOKENS, LLM: 1}
    if not weights:
        costs = common_unit(costs, max(1, len(costs))) >> 8
        weights = dict.fromkeys(config.resources, 1)
    pairs = weights.get(ATTENTION_PAIRS, 0)
    largest = costs.max(axis=0, initial=0).tolist()
    most = sum(
        weights.get(name, 0) * top + (pairs * top * top if name == LLM else 0)
        for name, top in zip(config.resources, largest, strict=True)
    )
    shift = max(0, most.bit_length() + len(costs).bit_length() - _MOST_BITS)
    times = np.zeros_like(costs)
    for column, name in enumerate(config.resources):
        square = pairs if name == LLM else 0
        weight = weights.get(name, 0)
        times[:, column] = _time(costs[:, column], weight, square, shift, largest[column])
    return times


def _time(values: Int64, weight: int, square: int, shift: int, largest: int) -> Int64:
    """Return (weight x values + square x values squared) >> shift, exactly, as int64 (n,)."""
    if (weight * largest + square * largest * largest).bit_length() < 63:
        return (weight * values + square * values * values) >> shift
    exact = [(weight * v + square * v * v) >> shift for v in values.tolist()]
    return np.array(exact, dtype=np.int64)


def is_timed(config: PlanConfig) -> bool:
    """Return whether sums are planned by times; padded work looks at them itself."""
    return bool(config.time_ns) and not config.padded


def timed_config(config: PlanConfig) -> PlanConfig:
    """Return the configuration of `timed_costs`: budgets first, then a time for each resource.

    >>> config = PlanConfig(1, 8, 1, ("tiles", "tokens"), (9, None), time_ns=(("tokens", 4),))
    >>> timed_config(config).resources, timed_config(config).budgets
    (('tiles', 'tokens ns'), (9, None))
    """
    limited = [k for k, budget in enumerate(config.budgets) if budget is not None]
    names = [f"{config.resources[k]} ns" for k in _weighed(config)]
    return replace(
        config,
        resources=(*(config.resources[k] for k in limited), *names),
        budgets=(*(config.budgets[k] for k in limited), *(None for _ in names)),
        time_ns=tuple((name, 1) for name in sorted(names)),
    )


def timed_costs(config: PlanConfig, costs: Int64) -> Int64:
    """Return the costs that have budgets, and the time of each resource of samples (n, resources).

    >>> times = (("attention_pairs", 2), ("tokens", 3))
    >>> config = PlanConfig(1, 8, 1, ("tokens",), (9,), time_ns=times)
    >>> timed_costs(config, np.array([[5], [7]])).tolist()
    [[5, 65], [7, 119]]
    """
    limited = [costs[:, k] for k, budget in enumerate(config.budgets) if budget is not None]
    times = resource_times(config, costs)
    return np.stack([*limited, *(times[:, k] for k in _weighed(config))], axis=1)


def _weighed(config: PlanConfig) -> list[int]:
    """Return the numbers of the resources that take time."""
    names = {LLM if name == ATTENTION_PAIRS else name for name, _ in config.time_ns}
    return [k for k, name in enumerate(config.resources) if name in names]
