"""The partitions of groups to ranks, in a table by the name that a configuration gives.

Every rank gets the same number of groups (microbatches), in the order in which it runs them.
"""

from collections.abc import Callable

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import common_unit
from ..problem.shuffle import permutation
from .greedy import ascending, greedy
from .karmarkar_karp import karmarkar_karp
from .micro_steps import micro_steps

# (loads (groups, resources), ranks, seed) -> int64 (ranks, accumulate), a group for each place
Partition = Callable[[Int64, int, int], Int64]


def assign_groups(partition: str, loads: Int64, ranks: int, seed: int = 0) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources), groups a multiple of ranks; ValueError if not. Empty groups come
    last on their rank, except with "given".

    >>> assign_groups("given", np.array([[1], [2], [3], [4]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    if len(loads) % ranks:
        raise ValueError(
            f"{len(loads)} groups cannot be assigned evenly to {ranks} ranks; split or pad"
        )
    return BY_NAME[partition](loads, ranks, seed)


def _given(loads: Int64, ranks: int, _: int) -> Int64:
    return np.ascontiguousarray(np.arange(len(loads), dtype=np.int64).reshape(-1, ranks).T)


def _by_size(rank_of: Callable[[Int64, int, int], Int64]) -> Partition:
    """Return the partition by a function of one size per group: (sizes, ranks, seed) -> rank."""

    def partition(loads: Int64, ranks: int, seed: int) -> Int64:
        sizes = common_unit(loads, len(loads)).sum(axis=1)
        numbers = np.arange(len(sizes))
        # each rank's groups by number, the empty ones last
        order = np.lexsort((numbers, sizes == 0, rank_of(sizes, ranks, seed)))
        return order.reshape(ranks, -1)

    return partition


# To add a partition, add a line here and its name to PartitionName in problem/balance.py.
BY_NAME: dict[str, Partition] = {
    "multi_resource": micro_steps,
    "greedy": _by_size(lambda sizes, ranks, _: greedy(sizes, ranks, equal=True)),
    "ascending": _by_size(lambda sizes, ranks, _: ascending(sizes, ranks, equal=True)),
    "karmarkar_karp": _by_size(lambda sizes, ranks, _: karmarkar_karp(sizes, ranks, equal=True)),
    "random": _by_size(lambda sizes, ranks, seed: permutation(len(sizes), seed, 0) % ranks),
    "given": _given,
}
