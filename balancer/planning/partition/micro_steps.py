"""The partition for ranks that wait for each other at every pass, as they do without a pipeline.

A micro-step is what all ranks run at the same time: one group (microbatch) each. Groups of like
loads are put side by side in a micro-step, so that no rank waits long; within a micro-step groups
go to ranks such that the ranks' sums over the whole step stay even too.
"""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import UNLIMITED, alike
from ..problem.scale import scale_costs

_MOST = 2**26  # scaled deviations are cut here, so that sums of products stay in 64 bits


def micro_steps(loads: Int64, ranks: int, seed: int) -> Int64:
    """Return int64 (ranks, accumulate): which group each rank runs when.

    loads: (groups, resources). Research of this project; no bound proven.
    """
    return assign_in_rows(alike(loads, ranks), loads, seed)


def assign_in_rows(rows: Int64, loads: Int64, seed: int) -> Int64:
    """Return int64 (ranks, accumulate): rows (accumulate, ranks) of groups given, rank sums even.

    loads: (groups, resources).
    """
    from ..kernels.assign import assign_rows

    unlimited = np.full(loads.shape[1], UNLIMITED)
    small, _ = scale_costs(loads, unlimited, len(loads))
    deviations = (small - small.sum(axis=0) // len(small)).clip(-_MOST, _MOST)
    sizes = np.abs(deviations).sum(axis=1)
    assigned = assign_rows(rows, np.argsort(-sizes[rows], axis=1, kind="stable"), deviations)
    # Turn the ranks by an amount that depends on the seed, so that none is always first.
    first = -seed % len(assigned)
    return np.concatenate([assigned[first:], assigned[:first]])
