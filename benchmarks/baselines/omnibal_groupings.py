"""The groupings that OmniBal (2025) compares with in its Table 3, so that benches can, too.

Each takes the samples' sizes (n,), ranks, samples of a microbatch and a seed, and returns their
numbers, int64 (rows, ranks, samples): the microbatches of a row run side by side. n is a multiple
of ranks x samples.
"""

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem.shuffle import permutation


def random_group(sizes: Int64, ranks: int, samples: int, seed: int) -> Int64:
    """Group samples in a random order.

    >>> random_group(np.array([1, 9, 2, 8]), ranks=2, samples=2, seed=0).shape
    (1, 2, 2)
    """
    return permutation(len(sizes), seed, 0).reshape(-1, ranks, samples)


def length_group(sizes: Int64, ranks: int, samples: int, seed: int) -> Int64:
    """Group samples of like size: little padding, and ranks that wait for each other.

    >>> rows = length_group(np.array([1, 9, 2, 8]), ranks=2, samples=2, seed=0)
    >>> sorted(np.sort(rows[0]).tolist())
    [[0, 2], [1, 3]]
    """
    groups = _smallest_first(sizes, seed).reshape(-1, samples)
    return groups[permutation(len(groups), seed, 1)].reshape(-1, ranks, samples)


def device_group(sizes: Int64, ranks: int, samples: int, seed: int) -> Int64:
    """Group such that microbatches side by side are alike: padding is worse than random.

    Samples sorted by size are cut into strips, one sample for each rank; a row is made of
    `samples` random strips.

    >>> np.sort(device_group(np.array([1, 9, 2, 8]), ranks=2, samples=2, seed=0)).tolist()
    [[[0, 3], [1, 2]]]
    """
    strips = _smallest_first(sizes, seed).reshape(-1, ranks)
    strips = strips[permutation(len(strips), seed, 1)]
    return strips.reshape(-1, samples, ranks).transpose(0, 2, 1)


def _smallest_first(sizes: Int64, seed: int) -> Int64:
    """Return sample numbers by ascending size, samples of one size in random order."""
    shuffled = permutation(len(sizes), seed, 0)
    return shuffled[np.argsort(sizes[shuffled], kind="stable")]
