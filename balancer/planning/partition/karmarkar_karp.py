"""Partition by a single size with the largest-difference method of Karmarkar and Karp.

Each item starts as a partition of its own, with one part filled and the others empty. The two
partitions whose largest and smallest sums differ most are joined, the largest part of one with the
smallest of the other, until one is left: differences cancel, where greedy only adds them up.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64

# A partition of some items: (sum, items) of every part, in descending order of sums
Bundle = list[tuple[int, list[int]]]


def karmarkar_karp(sizes: Int64 | Sequence[int], parts: int, equal: bool = False) -> Int64:
    """Return the part of each item, int64 (n,), by the largest-difference method.

    N. Karmarkar, R. M. Karp, The differencing method of set partitioning (1982), in its form for
    many parts (Korf 2009). equal=True starts
    from rows of `parts` items, so all parts get n / parts items (the smallest ones' parts one
    less where that is not whole), as in Michiels, Korst, Aarts (2003).

    >>> karmarkar_karp([8, 7, 6, 5, 4], parts=2).tolist()
    [1, 0, 1, 0, 0]
    """
    values = np.asarray(sizes, dtype=np.int64)
    order = np.argsort(-values, kind="stable").tolist()
    heap = [
        (-_spread(bundle), number, bundle)
        for number, bundle in enumerate(_rows(values.tolist(), order, parts, equal))
    ]
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        joined = _joined(first, second)
        heapq.heappush(heap, (-_spread(joined), number, joined))
        number += 1
    part_of = np.zeros(len(values), dtype=np.int64)
    for part, (_, members) in enumerate(heap[0][2] if heap else []):
        part_of[members] = part
    return part_of


def _rows(values: list[int], order: list[int], parts: int, equal: bool) -> list[Bundle]:
    """Return the partitions to start from: one item each, or with equal one row of items each."""
    width = parts if equal else 1
    rows = [order[begin : begin + width] for begin in range(0, len(order), width)]
    return [
        [(values[item], [item]) for item in row] + [(0, []) for _ in range(parts - len(row))]
        for row in rows
    ]


def _spread(bundle: Bundle) -> int:
    """Return the difference between the largest and the smallest sum."""
    return bundle[0][0] - bundle[-1][0]


def _joined(first: Bundle, second: Bundle) -> Bundle:
    """Join part by part, the largest with the smallest; sums stay in descending order."""
    both = [
        (a + b, one + other) for (a, one), (b, other) in zip(first, reversed(second), strict=True)
    ]
    return sorted(both, key=lambda part: -part[0])
