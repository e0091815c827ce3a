"""Grouping for steps with samples far larger than a microbatch's share: one row may be tall.

Groups of even loads are the best start where ranks wait for each other after every microbatch,
unless a sample alone is clearly more than a group's share. Then every rank waits for that sample in
its row (the microbatches that run side by side), and does next to nothing meanwhile. Better is one
row as tall as that sample, in which all ranks work as long, and shorter ones beside it.
"""

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import UNIT, alike, common_unit, group_loads
from .balanced import balanced

# A sample this much above a group's share makes a row worth being tall.
_TALL = UNIT + UNIT // 8


def with_tall_row(costs: Int64, ranks: int, accumulate: int, seed: int) -> Int64 | None:
    """Return group_of (n,) for costs (n, resources) with one row as tall as the largest sample.

    The other rows share what is left. Returns None where no sample stands out, or where there are
    too few. Research of this project; no bound proven.

    >>> with_tall_row(np.array([[9], [3], [3], [3], [1], [1], [1], [1]]), 2, 2, seed=0).tolist()
    [2, 3, 3, 3, 1, 0, 0, 1]
    """
    sizes = common_unit(costs, ranks * accumulate).max(axis=1)
    tallest = int(sizes.max(initial=0))
    if accumulate < 2 or tallest <= _TALL or len(costs) < ranks * accumulate:
        return None
    # What a group of a short row holds if the tall row is full.
    height = max((accumulate * UNIT - tallest) // (accumulate - 1), 1)
    short = ranks * (accumulate - 1)
    candidates = [
        _together(costs, sizes, ranks, short, height, seed),
        _apart(costs, sizes, ranks, short, seed),
    ]
    whole = [
        group_of
        for group_of in candidates
        if group_of is not None and np.bincount(group_of, minlength=short + ranks).all()
    ]
    return min(whole, key=lambda group_of: waiting(costs, group_of, ranks), default=None)


def waiting(costs: Int64, group_of: Int64, ranks: int) -> int:
    """Return what ranks spend in all rows and resources, in a common unit: the largest loads."""
    groups = int(group_of.max(initial=-1)) + 1
    rows = alike(group_loads(costs, group_of, groups), ranks)
    loads = group_loads(common_unit(costs, groups), group_of, groups)
    return int(loads[rows].max(axis=1).sum())


def _together(
    costs: Int64, sizes: Int64, ranks: int, short: int, height: int, seed: int
) -> Int64 | None:
    """Make even parts of all samples; a group of the tall row gets several, others get one each.

    Good where the short rows hold a fair part of the work: they are as even as one grouping is.
    """
    large = np.argsort(-sizes, kind="stable")[:ranks]
    room = sizes[large[0]] - sizes[large]
    # With about two samples a part there is something left to even out.
    unit = max(height, int(room.sum()) // max(1, len(sizes) // 2 - short))
    large = large[sizes[large] > unit]
    # With hardly more samples than groups one part can be as large as the largest sample.
    if not len(large):
        return None
    inside = np.full(ranks, sizes[large[0]] // unit)
    inside[: len(large)] = room[: len(large)] // unit
    small = np.setdiff1d(np.arange(len(sizes)), large)
    # The parts that short rows and the groups of the tall row get.
    parts = np.concatenate([np.arange(short), short + np.repeat(np.arange(ranks), inside)])
    if len(small) < len(parts):
        return None
    group_of = np.empty(len(costs), dtype=np.int64)
    group_of[large] = short + np.arange(len(large))
    group_of[small] = parts[_grouped(costs[small], len(parts), seed)]
    return group_of


def _apart(costs: Int64, sizes: Int64, ranks: int, short: int, seed: int) -> Int64 | None:
    """Give the short rows the smallest samples and the tall row all others, each grouped alone.

    As few are small as leave the tall row room for the others in every resource. Good where giants
    differ in size, or are longer than nearly all other work.
    """
    unit = common_unit(costs, short + ranks)
    ascending = np.argsort(sizes, kind="stable")
    sums = np.cumsum(unit[ascending], axis=0)
    # What does not fit in the tall row, of each resource.
    excess = sums[-1] - ranks * sizes.max()
    enough = max(int(np.searchsorted(sums[:, r], excess[r])) for r in range(len(excess)))
    cut = max(short, min(enough, len(costs) - ranks))
    small, large = ascending[:cut], ascending[cut:]
    group_of = np.empty(len(costs), dtype=np.int64)
    group_of[small] = _grouped(costs[small], short, seed)
    group_of[large] = short + _grouped(costs[large], ranks, seed)
    return group_of


def _grouped(costs: Int64, parts: int, seed: int) -> Int64:
    return balanced(costs, (None,) * costs.shape[1], parts, seed).group_of
