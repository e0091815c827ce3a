"""Lower bounds that no plan of a step can beat, whatever it groups, assigns and orders.

Both rest on one fact: some rank gets at least the mean of all work, and of the k heaviest samples
some rank gets ceil(k / ranks). The sum of the rows' largest loads, where ranks wait for each other
at every microbatch, is at least the largest sum of a rank.
"""

import numpy as np

from ....balancer.planning.kernels.arrays import Int64


def least_slowest(sizes: Int64, ranks: int) -> int:
    """Return a lower bound on the largest rank sum of samples of these sizes (n,).

    The largest of: the mean, rounded up to what sizes can add up to; and, for every k, the k-th
    largest size times ceil(k / ranks).

    >>> least_slowest(np.array([5, 3, 3]), ranks=2), least_slowest(np.array([2, 2, 2]), ranks=2)
    (6, 4)
    """
    unit = int(np.gcd.reduce(sizes)) if len(sizes) else 0
    if not unit:
        return 0
    mean = -(-int(sizes.sum()) // (ranks * unit)) * unit
    descending = np.sort(sizes)[::-1]
    layers = np.arange(len(sizes)) // ranks + 1
    return max(mean, int((descending * layers).max()))


def least_pipeline_time(forward: Int64, ranks: int) -> int:
    """Return a lower bound on the slowest rank's time of a step, in the unit of forward.

    forward (stages, n): each sample's forward time in every stage; backward takes twice as long.
    A stage does all passes of its rank one after the other, and a sample passes all stages twice.
    """
    whole = max(least_slowest(stage, ranks) for stage in forward)
    return 3 * max(whole, int(forward.sum(axis=0).max(initial=0)))
