"""Groups to ranks: every rank gets the same number, its microbatches in the order they run.

The default makes micro-steps first: groups that are alike run side by side on all ranks, because
without a pipeline the ranks meet at every pass, not only at the step's end. Within a micro-step
groups go to ranks so that the ranks' sums over the step stay even too.
"""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import UNLIMITED, common_unit
from ..problem.scale import scaled
from ..problem.shuffle import permutation
from .greedy import ascending, greedy
from .karmarkar_karp import kk

_MOST = 2**26


def deal(partition: str, loads: Int64, ranks: int, seed: int = 0) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources), groups a multiple of ranks. Empty groups come last on their rank.

    >>> deal("given", np.array([[1], [2], [3], [4]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    if len(loads) % ranks:
        raise ValueError(f"{len(loads)} groups do not deal evenly to {ranks} ranks; split or pad")
    if partition == "given":
        return np.ascontiguousarray(np.arange(len(loads), dtype=np.int64).reshape(-1, ranks).T)
    if partition == "two_resource":
        return _turned(_micro_steps(loads, ranks), seed)
    sizes = common_unit(loads, len(loads)).sum(axis=1)
    return _by_rank(_rank_of(partition, sizes, ranks, seed), sizes, ranks)


def alike(loads: Int64, ranks: int) -> Int64:
    """Return int64 (rows, ranks): groups sorted so that those of a row have like loads.

    The coarsest resource (fewest different values) sorts first, the others break ties in the
    opposite direction: a group low in one is often at its budget in another.

    >>> alike(np.array([[9, 10], [8, 30], [9, 20], [8, 40]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    kinds = [len(np.unique(loads[:, column])) for column in range(loads.shape[1])]
    columns = sorted(range(loads.shape[1]), key=lambda column: (kinds[column], column))
    keys = [loads[:, column] for column in columns[:0:-1]] + [-loads[:, columns[0]]]
    empty = loads.sum(axis=1) == 0
    return np.lexsort((*keys, empty)).reshape(-1, ranks)


def _micro_steps(loads: Int64, ranks: int) -> Int64:
    from ..kernels.assign import deal_rows

    rows = alike(loads, ranks)
    unlimited = np.full(loads.shape[1], UNLIMITED)
    small, _ = scaled(loads, unlimited, len(loads))
    deviations = np.clip(small - small.sum(axis=0) // len(small), -_MOST, _MOST)
    sizes = np.abs(deviations).sum(axis=1)
    return deal_rows(rows, np.argsort(-sizes[rows], axis=1, kind="stable"), deviations)


def _turned(dealt: Int64, seed: int) -> Int64:
    """Turn the ranks by an amount that depends on the seed, so that none is always first."""
    return np.roll(dealt, seed % len(dealt), axis=0)


def _rank_of(partition: str, sizes: Int64, ranks: int, seed: int) -> Int64:
    if partition == "random":
        return permutation(len(sizes), seed, 0) % ranks
    if partition == "kk":
        return kk(sizes, ranks, equal=True)
    if partition == "ascending":
        return ascending(sizes, ranks, equal=True)
    return greedy(sizes, ranks, equal=True)


def _by_rank(rank_of: Int64, sizes: Int64, ranks: int) -> Int64:
    """Each rank's groups by number, the empty ones last."""
    order = np.lexsort((np.arange(len(rank_of)), sizes == 0, rank_of))
    return order.reshape(ranks, -1)
