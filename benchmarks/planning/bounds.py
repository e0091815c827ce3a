"""Lower bounds that no plan of a step can beat, whatever it groups, assigns and orders.

They rest on one fact: some rank gets at least the mean of all work, and of the k heaviest samples
some rank gets ceil(k / ranks). The sum of the rows' largest loads, where ranks wait for each other
at every microbatch, is at least the largest sum of a rank; and as every microbatch has a sample,
every row is at least as tall as the largest of `ranks` samples.
"""

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64


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


def least_rows(sizes: Int64, ranks: int, accumulate: int) -> int:
    """Return a lower bound on the sum of the rows' largest loads, by samples of sizes (n,).

    Every microbatch has a sample (n is ranks x accumulate or more). So with rows by ascending
    tops, the first k hold k x ranks samples or more, and the k-th top is at least the
    (k x ranks)-th smallest size; the last is at least the largest.

    >>> least_rows(np.array([90, 2, 2, 1, 1, 1]), ranks=2, accumulate=3)
    93
    """
    if not len(sizes):
        return 0
    if len(sizes) < ranks * accumulate:
        raise ValueError(f"{len(sizes)} samples leave some of {ranks} x {accumulate} empty")
    ascending = np.sort(sizes)
    lower = ascending[ranks - 1 :: ranks][: accumulate - 1]
    return max(least_slowest(sizes, ranks), int(lower.sum() + ascending[-1]))


def least_pipeline_time(forward: Int64, ranks: int) -> int:
    """Return a lower bound on the slowest rank's time of a step, in the unit of forward.

    forward (stages, n): each sample's forward time in every stage; backward takes twice as long.
    A stage does all passes of its rank one after the other, and a sample passes all stages twice.
    """
    whole = max(least_slowest(stage, ranks) for stage in forward)
    return 3 * max(whole, int(forward.sum(axis=0).max(initial=0)))
