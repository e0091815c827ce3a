"""The default grouping: microbatches within budgets, with even loads in every resource.

Packing vectors into bins is NP-hard, so this is a heuristic in two phases. Placement puts samples,
largest first, into the group that stays lowest and most even (kernels/pack.py); since the search
among groups would grow with the square of the samples, it works on chunks of about 4,096 of them.
Refinement then swaps samples between heavy and light groups (kernels/swap.py).

With equal counts every microbatch has as many samples as others, and samples only change places.
"""

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..kernels.loops import place, two_ended
from ..problem.costs import check_costs
from ..problem.loads import (
    UNIT,
    UNLIMITED,
    budget_array,
    group_loads,
    in_units,
    least_groups,
    order_by_size,
    oversized,
    scale_costs,
)
from .groups import GroupingResult, make_slots, read_slots

CHUNK = 4096
ROUNDS = 16
CANDIDATES = 64
# Without budgets: rounds, and from which on only what is above the mean load counts.
FREE_ROUNDS, EXCESS_FROM = 12, 4


def balanced(
    costs: Int64, budgets: Sequence[int | None], parts: int | None = None, seed: int = 0,
    rounds: int | None = None, refine_up_to: int | None = None, coarse: bool = False,
    blocked: Int64 | None = None,
) -> GroupingResult:  # fmt: skip
    """Group all samples (n, resources) within budgets into `parts` groups of even loads, or more.

    Longest processing time in several resources, then two-ended best swaps (research of this
    project; the placement follows Graham 1969 with a max-norm score, no bound proven). parts
    defaults to the least that the sums allow. Placement looks at the resources that have
    budgets, refinement at all; a result of more than refine_up_to groups is not refined. Samples
    over budget are alone, and reported. The order of the samples does not matter, except with
    coarse=True: then those of like size keep it, so another shuffle gives other groups. blocked
    (parts, resources): what of a group's budgets is to stay free.

    >>> balanced(np.array([[5], [4], [3], [6]]), budgets=[9]).group_of.tolist()
    [0, 0, 1, 1]
    """
    costs = check_costs(costs, len(budgets))
    limits = budget_array(budgets)
    over = oversized(costs, limits)
    fitting, oversize = np.flatnonzero(~over), np.flatnonzero(over)
    target = least_groups(costs[fitting], limits) if parts is None else parts - len(oversize)
    most = None if refine_up_to is None else refine_up_to - len(oversize)
    group_of = np.full(len(costs), -1, dtype=np.int64)
    groups = 0
    if len(fitting):
        small, tight = _scaled(costs[fitting], limits, max(1, target), coarse)
        order = order_by_size(costs[fitting], small, coarse=coarse)
        small = small[order]
        taken = np.zeros((max(1, target), len(limits)), dtype=np.int64)
        if blocked is not None:
            taken = in_units(blocked, tight, limits)
        inner, taken = _place_by_budgets(small, tight, limits, taken)
        groups = len(taken)
        if most is None or groups <= most:
            is_free = bool((limits == UNLIMITED).all())
            count = (FREE_ROUNDS if is_free else ROUNDS) if rounds is None else rounds
            excess_from = EXCESS_FROM if is_free else count
            inner = refine(small, tight, inner, groups, count, seed, True, excess_from, taken)
        group_of[fitting[order]] = inner
    group_of[oversize] = groups + np.arange(len(oversize))
    return GroupingResult(group_of, groups + len(oversize), oversize=oversize)


def _scaled(costs: Int64, limits: Int64, parts: int, coarse: bool) -> tuple[Int64, Int64]:
    """Return scaled costs of samples within budgets, and scaled budgets: `scale_costs`.

    Rounded up, a sample of just its budget exceeds the one rounded down: it would be in a further
    group, however many there are. With coarse the number of groups is free, and plans stay as they
    are.
    """
    small, tight = scale_costs(costs, limits, parts)
    return (small if coarse else np.minimum(small, tight)), tight


def _place_by_budgets(
    small: Int64, tight: Int64, limits: Int64, taken: Int64
) -> tuple[Int64, Int64]:
    """Place samples by the resources that have budgets, or by all if none has: see `_place`.

    Resources without budgets do not limit a group, so they do not decide the placement.
    """
    capped = np.flatnonzero(limits < UNLIMITED)
    capped = capped if len(capped) else np.arange(len(limits))
    inner, origin = _place(small[:, capped], tight[capped], taken[:, capped])
    taken_and_none = np.append(taken, np.zeros_like(taken[:1]), axis=0)
    return inner, taken_and_none[origin]


def _place(costs: Int64, budgets: Int64, taken: Int64) -> tuple[Int64, Int64]:
    """Place samples sorted by size, every k-th of them at a time; return group_of and origins.

    taken (parts, resources): what is in the parts at first. Each chunk gets its share of the parts
    that those before it left. origins (groups,): the part that each group was, -1 for a further
    one.
    """
    parts = len(taken)
    chunks = max(1, min(round(len(costs) / CHUNK), parts))
    group_of = np.empty(len(costs), dtype=np.int64)
    weights = [_weight(costs[chunk::chunks], budgets) for chunk in range(chunks)]
    groups, ahead, left, origins = 0, sum(weights), np.arange(parts), list[Int64]()
    for chunk in range(chunks):
        chunk_costs = np.ascontiguousarray(costs[chunk::chunks])
        share = max(1, (parts - groups) * weights[chunk] // ahead)
        ahead -= weights[chunk]
        inner = np.empty(len(chunk_costs), dtype=np.int64)
        chosen = np.arange(min(share, len(left))) * len(left) // share
        origin, left = left[chosen], np.delete(left, chosen)
        origin = np.append(origin, np.full(len(chunk_costs) + share - len(origin), -1))
        loads = np.zeros((len(origin), costs.shape[1]), dtype=np.int64)
        loads[origin >= 0] = taken[origin[origin >= 0]]
        order = np.arange(len(chunk_costs), dtype=np.int64)
        placed = place(order, chunk_costs, budgets, share, inner, loads)
        group_of[chunk::chunks] = inner + groups
        origins.append(origin[:placed])
        groups += placed
    return group_of, np.concatenate(origins)


def _weight(costs: Int64, budgets: Int64) -> int:
    """Return a lower bound on the groups of samples, in 1/1024, plus one per sample."""
    return int(np.max(costs.sum(axis=0) * 1024 // budgets)) + len(costs)


def refine(
    costs: Int64, budgets: Int64, group_of: Int64, groups: int, rounds: int, seed: int = 0,
    moves: bool = True, excess_from: int | None = None, taken: Int64 | None = None,
) -> Int64:  # fmt: skip
    """Return group_of after two-ended swaps of scaled costs; see kernels.swap.two_ended.

    excess_from: the round from which on only what is above the mean load counts; None: no round.
    taken (groups, resources): what groups hold beside their items.

    Groups of one item that makes up nearly a whole group stay as they are.
    """
    slots = make_slots(costs, group_of, groups, 4 if moves else 0)
    full_alone = (slots.counts == 1) & (slots.loads > UNIT - UNIT // 16).any(axis=1)
    active = np.flatnonzero(~full_alone)
    if taken is not None:
        slots.loads[:] += taken
    last = rounds if excess_from is None else excess_from
    if len(active) > 1 and rounds:
        two_ended(slots, costs, budgets, active, rounds, seed, moves, CANDIDATES, last)
    return read_slots(slots, len(costs))


def equal(costs: Int64, budgets: tuple[int | None, ...], parts: int, seed: int) -> GroupingResult:
    """Group samples (n, resources) into `parts` groups whose counts differ by one at most.

    Largest first, to and fro over the groups; then two-ended swaps, which change no count
    (research of this project, no bound proven). Returns parts + 1 groups where one is over budget.

    >>> equal(np.array([[5], [4], [3], [6]]), (None,), parts=2, seed=0).group_of.tolist()
    [1, 1, 0, 0]
    """
    limits = budget_array(budgets)
    small, tight = scale_costs(costs, limits, max(1, parts))
    order = order_by_size(costs, small)
    turn, place = np.divmod(np.arange(len(costs)), parts)
    inner = np.where(turn % 2 == 0, place, parts - 1 - place)
    inner = refine(
        small[order], tight, inner, parts, FREE_ROUNDS, seed, moves=False, excess_from=EXCESS_FROM
    )
    group_of = np.empty(len(costs), dtype=np.int64)
    group_of[order] = inner
    over = (group_loads(costs, group_of, parts) > limits).any()
    return GroupingResult(group_of, parts + int(over))
