"""Grouping that fills every microbatch evenly in all resources: the default."""

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..problem.config import check_costs
from ..problem.loads import UNLIMITED, budget_array, least_groups, oversized
from ..problem.scale import UNIT, by_size, scaled
from .result import Grouping
from .slots import fill_slots, read_slots

CHUNK = 4096
ROUNDS = 16
LOOK = 64


def balanced(
    costs: Int64,
    budgets: Sequence[int | None],
    parts: int | None = None,
    seed: int = 0,
    rounds: int = ROUNDS,
    most: int | None = None,
    anew: bool = False,
) -> Grouping:
    """Group all samples (n, resources) within budgets into `parts` groups of even loads, or more.

    Longest processing time in several resources, then two-ended best swaps (research of this
    project; the placement follows Graham 1969 with a max-norm score, no bound proven). parts
    defaults to the least that the sums allow. Samples are placed 4,096 at a time (every k-th by
    size) by the resources that have budgets, then refined all together by all resources; if
    there are more than `most` groups they are not refined. Samples over budget are alone, and
    reported. With anew, like samples keep the order given, so that another shuffle of the same
    samples gives other groups; without it the order given does not matter.

    >>> balanced(np.array([[5], [4], [3], [6]]), budgets=[9]).group_of.tolist()
    [0, 0, 1, 1]
    """
    costs = check_costs(costs, len(budgets))
    limits = budget_array(budgets)
    over = oversized(costs, limits)
    fitting, oversize = np.flatnonzero(~over), np.flatnonzero(over)
    wanted = least_groups(costs[fitting], limits) if parts is None else parts - len(oversize)
    group_of = np.full(len(costs), -1, dtype=np.int64)
    groups = 0
    if len(fitting):
        small, tight = scaled(costs[fitting], limits, max(1, wanted))
        order = by_size(costs[fitting], small, coarsely=anew)
        small = small[order]
        capped = np.flatnonzero(limits < UNLIMITED) if (limits < UNLIMITED).any() else slice(None)
        inner, groups = _placed(small[:, capped], tight[capped], max(1, wanted))
        if most is None or groups + len(oversize) <= most:
            inner = refined(small, tight, inner, groups, rounds, seed)
        group_of[fitting[order]] = inner
    group_of[oversize] = groups + np.arange(len(oversize))
    nothing = np.empty(0, dtype=np.int64)
    return Grouping(group_of, groups + len(oversize), nothing, oversize)


def _placed(costs: Int64, budgets: Int64, parts: int) -> tuple[Int64, int]:
    """Place samples sorted by size, every k-th of them at a time.

    Each chunk gets its share of the parts that those before it left.
    """
    from ..kernels.pack import place

    chunks = max(1, min(round(len(costs) / CHUNK), parts))
    group_of = np.empty(len(costs), dtype=np.int64)
    weights = [_weight(costs[chunk::chunks], budgets) for chunk in range(chunks)]
    groups, ahead = 0, sum(weights)
    for chunk in range(chunks):
        some = np.ascontiguousarray(costs[chunk::chunks])
        share = max(1, (parts - groups) * weights[chunk] // ahead)
        ahead -= weights[chunk]
        inner = np.empty(len(some), dtype=np.int64)
        loads = np.zeros((len(some) + share, costs.shape[1]), dtype=np.int64)
        order = np.arange(len(some), dtype=np.int64)
        found = place(order, some, budgets, share, inner, loads)
        group_of[chunk::chunks] = inner + groups
        groups += found
    return group_of, groups


def _weight(costs: Int64, budgets: Int64) -> int:
    """How many groups samples need at least, in 1/1024, and a little for each sample."""
    return int(np.max(costs.sum(axis=0) * 1024 // budgets)) + len(costs)


def refined(
    costs: Int64,
    budgets: Int64,
    group_of: Int64,
    groups: int,
    rounds: int,
    seed: int = 0,
    moves: bool = True,
    look: int = LOOK,
) -> Int64:
    """Return group_of after two-ended swaps of scaled costs; see kernels_swap.two_ended.

    Groups of one item that is about a whole group by itself stay out.
    """
    from ..kernels.swap import two_ended

    slots = fill_slots(costs, group_of, groups, 4 if moves else 0)
    lonely = (slots.count == 1) & (slots.loads > UNIT - UNIT // 16).any(axis=1)
    active = np.flatnonzero(~lonely)
    if len(active) > 1 and rounds:
        two_ended(
            slots.items, slots.start, slots.count, slots.loads, costs, budgets,
            active, rounds, seed, moves, look,
        )  # fmt: skip
    return read_slots(slots, len(costs))
