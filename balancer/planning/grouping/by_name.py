"""The grouping strategies, in a table by the name that a configuration gives.

Those by count are here: batch_size samples per microbatch, as without balancing.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import PlanConfig
from ..problem.loads import scale_costs
from ..problem.shuffle import permutation
from .balanced import balanced, equal
from .bucket_rows import TRIES, blocked
from .groups import NOTHING, GroupingResult
from .padded import padded


def fixed(samples: int, batch_size: int) -> GroupingResult:
    """Group samples in the order given; the last group may be smaller.

    >>> fixed(5, batch_size=2).group_of.tolist()
    [0, 0, 1, 1, 2]
    """
    return _sliced(np.arange(samples, dtype=np.int64), batch_size)


def random(samples: int, batch_size: int, seed: int) -> GroupingResult:
    """Group samples in a random order: the baseline of OmniBal's Table 3."""
    return _sliced(permutation(samples, seed, 0), batch_size)


def length(costs: Int64, batch_size: int, seed: int) -> GroupingResult:
    """Group samples (n, resources) of like size: OmniBal's length-group, little padding.

    >>> length(np.array([[1], [9], [2], [8]]), batch_size=2, seed=0).group_of.tolist()
    [0, 1, 0, 1]
    """
    return _sliced(_smallest_first(costs, seed), batch_size)


def device(costs: Int64, batch_size: int, ranks: int, seed: int) -> GroupingResult:
    """Group such that the groups that run side by side are alike: OmniBal's device-group.

    Samples sorted by size are cut into strips, one sample for each rank; a row of `ranks` groups
    is made of batch_size random strips. Sizes agree across ranks and vary inside a group, so
    padding is worse than random. Groups ranks*k .. ranks*k + ranks - 1 run side by side.

    >>> device(np.array([[1], [9], [2], [8]]), batch_size=2, ranks=2, seed=0).group_of.tolist()
    [0, 1, 1, 0]
    """
    order = _smallest_first(costs, seed)
    strips = -(-len(order) // ranks)
    if not strips:
        return GroupingResult(NOTHING, 0)
    row_of_strip = np.empty(strips, dtype=np.int64)
    # The last strip may be short: it goes to the last row, so that no earlier group is empty.
    row_of_strip[permutation(strips - 1, seed + 1, 0)] = np.arange(strips - 1) // batch_size
    row_of_strip[-1:] = (strips - 1) // batch_size
    strip, place = np.divmod(np.arange(len(order)), ranks)
    group_of = np.empty(len(order), dtype=np.int64)
    group_of[order] = row_of_strip[strip] * ranks + place
    return GroupingResult(group_of, int(group_of.max(initial=-1)) + 1)


def _smallest_first(costs: Int64, seed: int) -> Int64:
    """Return sample numbers by ascending size, samples of one size in random order."""
    small, _ = scale_costs(costs, np.full(costs.shape[1], 2**62), len(costs))
    shuffled = permutation(len(costs), seed, 0)
    return shuffled[np.argsort(small.sum(axis=1)[shuffled], kind="stable")]


def _sliced(order: Int64, batch_size: int) -> GroupingResult:
    """Group the samples of an order, batch_size at a time."""
    group_of = np.empty(len(order), dtype=np.int64)
    group_of[order] = np.arange(len(order)) // batch_size
    return GroupingResult(group_of, -(-len(order) // batch_size))


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


def _batch_size(config: PlanConfig) -> int:
    return config.batch_size or 1


# To add a strategy, add a line here and its name to GroupingName in problem/balance.py.
BY_NAME: dict[str, Callable[[PlanConfig, GroupingRequest], GroupingResult]] = {
    "balanced": _balanced,
    "isf": _isf,
    "fixed": lambda config, request: fixed(len(request.costs), _batch_size(config)),
    "random": lambda config, request: random(len(request.costs), _batch_size(config), request.seed),
    "length": lambda config, request: length(request.costs, _batch_size(config), request.seed),
    "device": lambda config, request: device(
        request.costs, _batch_size(config), config.ranks, request.seed
    ),
}
