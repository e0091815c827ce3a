"""The partition for ranks that wait for each other at every pass, as they do without a pipeline.

A micro-step is what all ranks run at the same time: one group (microbatch) each. Groups of like
loads are put side by side in a micro-step, so that no rank waits long; within a micro-step groups
go to ranks such that the ranks' sums over the whole step stay even too.
"""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import UNLIMITED
from ..problem.scale import scale_costs

_MOST = 2**26  # scaled deviations are cut here, so that sums of products stay in 64 bits


def micro_steps(loads: Int64, ranks: int, seed: int) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources). Research of this project; no bound proven.
    """
    from ..kernels.assign import assign_rows

    rows = alike(loads, ranks)
    unlimited = np.full(loads.shape[1], UNLIMITED)
    small, _ = scale_costs(loads, unlimited, len(loads))
    deviations = np.clip(small - small.sum(axis=0) // len(small), -_MOST, _MOST)
    sizes = np.abs(deviations).sum(axis=1)
    assigned = assign_rows(rows, np.argsort(-sizes[rows], axis=1, kind="stable"), deviations)
    # Turn the ranks by an amount that depends on the seed, so that none is always first.
    return np.roll(assigned, seed % len(assigned), axis=0)


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
