"""The shuffle, the order of an epoch's samples as torch's DistributedSampler makes it; and seeds.

The same permutation, without importing torch; kernels/shuffle.py is its inner loop.

torch.randperm draws 32 random bits per position from MT19937 and swaps (Fisher-Yates); from
2**32 / 20 elements on it draws 64. numpy's legacy RandomState is the same generator with the same
seeding, and its stream is frozen by numpy's compatibility policy.
"""

from collections.abc import Iterator

import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import swap

_WIDE_FROM = (2**32 - 1) // 20
# Positions whose partners are drawn together.
_PART = 1 << 17
_WORD = 2**64 - 1


def permutation(count: int, seed: int, epoch: int, shuffle: bool = True) -> Int64:
    """Return int64 (count,): torch.randperm(count) under manual_seed(seed + epoch), or 0, 1, ...

    Source: torch/utils/data/distributed.py and randperm_cpu of ATen's TensorFactories.cpp.

    >>> permutation(5, seed=0, epoch=0).tolist(), permutation(3, 0, 7, shuffle=False).tolist()
    ([4, 0, 1, 3, 2], [0, 1, 2])
    """
    if count < 0:
        raise ValueError(f"count is {count}, needed is a number of samples, zero or more")
    order = np.arange(count, dtype=np.int64)
    if not shuffle or count < 2:
        return order
    begin = 0
    for partners in _partners(count, seed + epoch):
        swap(order[begin:], partners)
        begin += len(partners)
    return order


def _partners(count: int, seed: int) -> Iterator[Int64]:
    """Yield the positions that all but the last swap with, in parts, each counted from its first.

    Together they, and what they are made of, would take five times the order's memory.
    """
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    wide = count >= _WIDE_FROM
    for begin in range(0, count - 1, _PART):
        end = min(begin + _PART, count - 1)
        draws = generator.randint(0, 2**32, size=(end - begin) * (1 + wide), dtype=np.uint32)
        bits = draws.astype(np.uint64)
        if wide:
            bits = bits[0::2] << np.uint64(32) | bits[1::2]
        left = np.arange(count - begin, count - end, -1, dtype=np.uint64)
        behind = (bits % left).astype(np.int64)
        yield behind + np.arange(end - begin, dtype=np.int64)


def derive_seed(*numbers: int) -> int:
    """Return 62 bits that depend on all the numbers and their order.

    splitmix64's mixing (Steele, Lea, Flood 2014), once per number.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & _WORD)) + 0x9E3779B97F4A7C15 & _WORD
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state >> 2
