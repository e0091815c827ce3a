"""Groups to ranks: every rank gets the same number, its microbatches in the order they run."""

import numpy as np

from .loads import common_unit
from .partition_greedy import ascending, greedy
from .plan import Int64


def deal(partition: str, loads: Int64, ranks: int) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources), groups a multiple of ranks. Empty groups come last on their rank.

    >>> deal("given", np.array([[1], [2], [3], [4]]), ranks=2).tolist()
    [[0, 2], [1, 3]]
    """
    if len(loads) % ranks:
        raise ValueError(
            f"{len(loads)} groups do not deal evenly to {ranks} ranks; split or pad them"
        )
    if partition == "given":
        return np.ascontiguousarray(np.arange(len(loads), dtype=np.int64).reshape(-1, ranks).T)
    sizes = common_unit(loads, len(loads)).sum(axis=1)
    rank_of = (ascending if partition == "ascending" else greedy)(sizes, ranks, equal=True)
    return _by_rank(rank_of, sizes, ranks)


def _by_rank(rank_of: Int64, sizes: Int64, ranks: int) -> Int64:
    """Each rank's groups by number, the empty ones last."""
    order = np.lexsort((np.arange(len(rank_of)), sizes == 0, rank_of))
    return order.reshape(ranks, -1)
