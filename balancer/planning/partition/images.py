"""Spread images over the ranks that encode them, by what each one costs the encoder.

Features travel back to the rank of the image's sample, so an image may be encoded anywhere. Where
it is does not change the result; it changes what is sent. So of plans that are equally even the
one that moves least is taken.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from .by_name import greedy


def spread_images(costs: Int64 | Sequence[int], homes: Int64 | Sequence[int], ranks: int) -> Int64:
    """Return the rank that encodes each image, int64 (n,).

    `homes`: the rank of each image's sample. The largest load is at most that of longest
    processing time first (`greedy`, 4/3 - 1/(3 ranks) times the best possible), and at most that
    of leaving all images where they are. A function of its arguments alone: ranks that know the
    same plan the same.

    >>> spread_images([1, 1, 1, 1, 1, 1], homes=[0, 0, 0, 0, 0, 1], ranks=2).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    costs, homes = np.asarray(costs, dtype=np.int64), np.asarray(homes, dtype=np.int64)
    if costs.shape != homes.shape:
        raise ValueError(f"there are {len(costs)} costs and {len(homes)} homes; give one each")
    if len(homes) and not 0 <= homes.min() <= homes.max() < ranks:
        raise ValueError(f"homes are {homes.min()} to {homes.max()}, allowed are 0 to {ranks - 1}")
    spread = greedy(costs, ranks)
    level = _largest(costs, spread, ranks)
    plans = (homes, _near_home(costs, homes, ranks, level), spread)
    return min(
        plans, key=lambda to: (_largest(costs, to, ranks), int(costs[to != homes].sum()))
    ).copy()


def image_loads(costs: Int64 | Sequence[int], to: Int64 | Sequence[int], ranks: int) -> list[int]:
    """Return what each rank encodes, in units of cost."""
    loads = np.zeros(ranks, dtype=np.int64)
    np.add.at(loads, np.asarray(to, dtype=np.int64), np.asarray(costs, dtype=np.int64))
    return [int(load) for load in loads]


def _near_home(costs: Int64, homes: Int64, ranks: int, level: int) -> Int64:
    """Return a plan that moves only what its home has no room for below the level."""
    to = homes.copy()
    loads, homeless = [0] * ranks, []
    values, at = costs.tolist(), homes.tolist()
    for image in np.argsort(-costs, kind="stable").tolist():
        if loads[at[image]] + values[image] <= level:
            loads[at[image]] += values[image]
        else:
            homeless.append(image)
    heap = [(load, rank) for rank, load in enumerate(loads)]
    heapq.heapify(heap)
    for image in homeless:
        load, rank = heap[0]
        to[image] = rank
        heapq.heapreplace(heap, (load + values[image], rank))
    return to


def _largest(costs: Int64, to: Int64, ranks: int) -> int:
    return max(image_loads(costs, to, ranks))
