"""Deals items to ranks, and each rank's to microbatches, by the parts that plans are made with.

In two stages, since counts may be equal on ranks and free in microbatches. In both items are
placed, largest first, and then exchanged between those that wait for each other
(kernels/level.py), where groups, speeds and budgets allow it. Research of this project.
"""

from dataclasses import replace

import numpy as np

from ..planning.grouping.balanced import balanced, equal
from ..planning.grouping.groups import make_slots, members, read_slots
from ..planning.grouping.padded import group_padded
from ..planning.kernels.arrays import Int64
from ..planning.kernels.loops import level_steps
from ..planning.partition.by_name import assign_in_rows
from ..planning.problem.loads import budget_array, group_loads, scale_costs
from ..planning.problem.options import Counts
from ..planning.problem.shuffle import permutation
from .problem import DealingProblem, Float64, KeepGroups

_SPARE = 4  # free places of a cell for items that move
# As in partition/level.py, where ranks wait once, and where they wait after each microbatch.
_ONCE, _EACH = (4, 1, 32, 11), (4, 4, 8, 8)
_FEW, _STARTS, _LEVEL = 64, 32, 1.0002  # so few items are dealt from other starts, until level
_HALVINGS = 40  # of the interval in which the smallest largest run is looked for
_LOOSE = -(2**40)  # what a cell is said to hold of a column that does not limit it


def deal_to_ranks(problem: DealingProblem, counts: Counts, keep_groups: KeepGroups) -> Int64:
    """Return the rank of each item (n,), for even work; ValueError where groups cannot be dealt."""
    ranks, keys = problem.config.ranks, problem.group_of
    if keys is None or keep_groups == "spread":
        return _deal(problem.loads, ranks, counts, keys, problem.speeds)
    keys = np.unique(keys, return_inverse=True)[1]
    sizes = np.bincount(keys)
    loads = group_loads(problem.loads, keys, len(sizes))
    divides = len(sizes) == len(keys) or (len(sizes) % ranks == 0 and sizes.min() == sizes.max())
    if counts == "free" or divides:
        return _deal(loads, ranks, counts, None, problem.speeds)[keys]
    least, most = len(keys) // ranks, -(-len(keys) // ranks)
    # What ranks lack of the largest count, as items without work: it evens counts out.
    lacking = np.zeros((most * ranks - len(keys), 1 + loads.shape[1]), dtype=np.int64)
    lacking[:, :1] = 1
    table = np.vstack([np.column_stack([sizes, loads]), lacking])
    budgets = (most, *(None for _ in loads.T))
    rank_of = balanced(table, budgets, ranks).group_of[: len(sizes)]
    held = np.bincount(rank_of, sizes, ranks)
    if len(held) > ranks or held.min() < least or held.max() > most:
        largest = int(problem.indices[np.argmax(keys == sizes.argmax())])
        raise ValueError(
            f"no deal of groups of {sizes.min()} to {sizes.max()} items (item {largest}'s is the "
            f"largest) to {ranks} ranks with {least} to {most} items each is found: use counts="
            "'free', keep_groups='spread', or groups of one size, whose number the ranks divide"
        )
    both = np.column_stack([sizes, -sizes])
    cells = np.arange(ranks)[:, None]
    return _exchange(loads, rank_of, cells, True, both, (most, -least), None, problem.speeds)[keys]


def _deal(
    loads: Int64, ranks: int, counts: Counts, keys: Int64 | None, speeds: Float64 | None
) -> Int64:
    """Return the rank of each item (n,); those of one key are spread over ranks."""
    if keys is None and speeds is None and len(loads) <= ranks:
        return np.arange(len(loads))
    if keys is not None or speeds is not None:
        rank_of = _place(loads, counts, keys, np.ones(ranks) if speeds is None else speeds)
    elif counts == "equal":
        rank_of = equal(loads, (None,) * loads.shape[1], ranks, seed=0).group_of
    else:
        rank_of = balanced(loads, (None,) * loads.shape[1], ranks).group_of
    moves, cells = counts == "free" and keys is None, np.arange(ranks)[:, None]
    rank_of = _exchange(loads, rank_of, cells, moves, loads[:, :0], (), keys, speeds)
    if len(loads) > _FEW or keys is not None or speeds is not None:
        return rank_of
    # Exchanges of few items soon find no better one; from elsewhere they find others.
    shares = _sum_shares(loads)
    top, bound = np.bincount(rank_of, shares).max(), max(shares.sum() / ranks, shares.max())
    for start in range(_STARTS):
        if top <= _LEVEL * bound:
            break
        other = permutation(len(loads), start, 0) % ranks
        other = _exchange(loads, other, cells, moves, loads[:, :0], (), keys, speeds)
        if (other_top := np.bincount(other, shares).max()) < top:
            rank_of, top = other, other_top
    return rank_of


def _place(loads: Int64, counts: Counts, keys: Int64 | None, speeds: Float64) -> Int64:
    """Return the rank of each item: largest first, to the rank that would be done first.

    Of those with the fewest items of its key, and, for equal counts, the fewest items.
    """
    cost, ranks = _sum_shares(loads), np.arange(len(speeds))
    order = np.argsort(-cost, kind="stable")
    if keys is not None:
        # A key's items after each other, those of the key with the largest item first.
        largest = np.zeros(int(keys.max(initial=0)) + 1)
        np.maximum.at(largest, keys, cost)
        order = np.lexsort((-cost, keys, -largest[keys]))
    rank_of, of_key = np.empty(len(cost), dtype=np.int64), np.zeros(len(ranks))
    held, sizes, key = np.zeros(len(ranks)), np.zeros(len(ranks)), -1
    for item in order.tolist():
        if keys is not None and keys[item] != key:
            key, of_key = keys[item], np.zeros(len(ranks))
        fewest = ranks if keys is None else np.flatnonzero(of_key == of_key.min())
        if counts == "equal":
            fewest = fewest[sizes[fewest] == sizes[fewest].min()]
        rank = fewest[np.argmin((held[fewest] + cost[item]) / speeds[fewest])]
        rank_of[item] = rank
        held[rank] += cost[item]
        sizes[rank] += 1
        of_key[rank] += 1
    return rank_of


def _exchange(
    loads: Int64, cell_of: Int64, cells: Int64, moves: bool, costs: Int64,
    budgets: tuple[int | None, ...], keys: Int64 | None, speeds: Float64 | None,
) -> Int64:  # fmt: skip
    """Return cell_of (n,) after exchanges within budgets that lower the largest loads.

    loads (n, columns): what is evened out, each column on its own and at last their sum. cells
    (ranks, microbatches): ranks wait for each other after each. moves: whether an item may go
    without another coming back. costs (n, resources) and budgets limit a cell. keys (n,): only
    items of one key change places. speeds (ranks,): with one microbatch only.
    """
    ranks, groups = len(cells), cells.size
    work, _ = scale_costs(loads, budget_array((None,) * loads.shape[1]), groups)
    if loads.shape[1] > 1:
        work = np.column_stack([work, work.sum(axis=1)])
    contests, free = cells.T[None, :, :, None], keys is None
    keys = np.ones(len(loads), dtype=np.int64) if keys is None else keys + 1
    if speeds is not None:
        # Slower ranks hold from the start what faster ones do more: in a second cell of each rank,
        # an item of a key of its own, below all others, which so stays where it is.
        ahead = np.rint((speeds.max() - speeds) * (work[:, -1].sum() / ranks)).astype(np.int64)
        work = np.vstack([work, np.repeat(ahead[:, None], work.shape[1], axis=1)])
        costs = np.vstack([costs, np.zeros((ranks, costs.shape[1]), dtype=np.int64)])
        keys = np.append(keys, -1 - np.arange(ranks))
        cell_of = np.append(cell_of, groups + np.arange(ranks))
        contests = np.concatenate([contests, contests + groups], axis=3)
    limits = np.ascontiguousarray(np.column_stack([costs, keys]))
    tight = np.append(budget_array(budgets), 0)
    slots = make_slots(limits, cell_of, contests.size, _SPARE if moves else 0)
    # A cell is said to hold nothing of keys, and may get no more, nor lose less: then no item
    # leaves it but for one of the same key.
    slots.loads[:, -1] = 0
    slots.loads[: groups * free, -1] = _LOOSE
    last = work.shape[1]
    turns = [(column, 0, column + 1) for column in range(last)]
    turns += [(last - 1, last - 1, last)] * (last > 1)
    turns, effort = (turns * 2, _EACH) if cells.shape[1] > 1 else (turns, _ONCE)
    arrays = limits, tight, np.ascontiguousarray(work), np.ascontiguousarray(contests)
    level_steps(slots, *arrays, np.array(turns), *effort)
    return read_slots(slots, len(cell_of))[: len(loads)]


def deal_to_microbatches(
    problem: DealingProblem, rank_of: Int64, least: int, multiple_of: int, counts: Counts,
    keep_groups: KeepGroups, keep_order: bool,
) -> tuple[Int64, int]:  # fmt: skip
    """Return the cell of each item (n,), rank x microbatches + microbatch, and the microbatches.

    All ranks have the same number, since where one has no further the others would wait for ever:
    the least, from `least` on, with which all items fit the budgets. A rank's microbatches are
    sorted by their load, so that like ones run side by side; with keep_order by their items.
    """
    ranks, (costs, budgets) = problem.config.ranks, problem.limited
    needed = group_loads(costs, rank_of, ranks).max(axis=0, initial=1)
    bounds = [-(-int(top) // most) for top, most in zip(needed, budgets, strict=True) if most]
    microbatches = _round_up(max(least, *bounds, 1), multiple_of)
    if microbatches == 1 and not (problem.config.padded and budgets):
        return rank_of, 1
    items_of = [np.array(items, dtype=np.int64) for items in members(rank_of, ranks)]
    cell_of, rank = np.empty(len(rank_of), dtype=np.int64), 0
    while rank < ranks:
        part_of, parts = _split(problem, items_of[rank], microbatches, keep_order)
        if parts > microbatches:  # all begin again with more
            microbatches, rank = _round_up(parts, multiple_of), 0
            continue
        cell_of[items_of[rank]] = rank * microbatches + part_of
        rank += 1
    is_fixed = keep_order or problem.config.padded or problem.speeds is not None
    if is_fixed or microbatches == 1:
        return cell_of, microbatches
    keys = problem.group_of
    if keys is not None and keep_groups == "together":
        keys = rank_of
    cells = np.arange(ranks * microbatches).reshape(ranks, microbatches)
    moves = counts == "free"
    return _exchange(problem.loads, cell_of, cells, moves, costs, budgets, keys, None), microbatches


def _round_up(number: int, multiple_of: int) -> int:
    return -(-number // multiple_of) * multiple_of


def _split(
    problem: DealingProblem, items: Int64, microbatches: int, keep_order: bool
) -> tuple[Int64, int]:
    """Return the microbatch of each of a rank's items, and how many there are, or are needed."""
    costs, budgets = problem.limited
    if keep_order:
        return _cut_in_order(costs[items], budgets, problem.work[items], microbatches)
    loads = problem.loads[items]
    if problem.config.padded:
        grouping = group_padded(
            replace(problem.config, ranks=1), problem.costs[items], microbatches
        )
    else:
        table = np.column_stack([costs[items], loads])
        grouping = balanced(table, (*budgets, *(None for _ in loads.T)), microbatches)
    if grouping.groups > microbatches:
        return items, grouping.groups
    sums = np.bincount(grouping.group_of, _sum_shares(loads), microbatches)
    return np.argsort(np.argsort(-sums, kind="stable"))[grouping.group_of], microbatches


def _sum_shares(loads: Int64) -> Float64:
    """Return the load of each item (n,): its columns in shares of their sums."""
    return np.asarray((loads / np.maximum(1, loads.sum(axis=0))).sum(axis=1))


def _cut_in_order(
    costs: Int64, budgets: tuple[int | None, ...], work: Float64, microbatches: int
) -> tuple[Int64, int]:
    """Cut items, in their order, into runs within budgets of which the largest is smallest."""
    table = np.column_stack([costs, work])
    sums = np.vstack([np.zeros(table.shape[1]), np.cumsum(table, axis=0)])

    def cut(top: float) -> list[int]:
        """Return where runs begin, each as long as budgets and a largest work allow."""
        begins = [0]
        while begins[-1] < len(work):
            begin = begins[-1]
            ends = [
                int(np.searchsorted(column, column[begin] + most, "right")) - 1
                for column, most in zip(sums.T, (*budgets, top), strict=True)
            ]
            begins.append(max(begin + 1, min(ends)))
        return begins

    low, high = 0.0, float(sums[-1, -1])
    begins = cut(high)
    for _ in range(_HALVINGS if len(begins) <= microbatches else 0):
        runs = cut((low + high) / 2)
        if len(runs) - 1 <= microbatches:
            begins, high = runs, (low + high) / 2
        else:
            low = (low + high) / 2
    return np.repeat(np.arange(len(begins) - 1), np.diff(np.array(begins))), len(begins) - 1


def deal_padded(problem: DealingProblem, least: int, multiple_of: int) -> tuple[Int64, int]:
    """Return the cell of each item and the microbatches where batches are padded, counts free.

    Both stages are one: items of like sizes run side by side, and ranks take what evens them out.
    """
    config = replace(problem.config, waits="microbatch")
    microbatches = _round_up(least, multiple_of)
    while True:
        groups = config.ranks * microbatches
        grouping = group_padded(config, problem.costs, groups)
        if grouping.groups <= groups:
            break
        microbatches = _round_up(-(-grouping.groups // config.ranks), multiple_of)
    rows = np.arange(groups).reshape(microbatches, config.ranks)
    work = problem.sum_work(grouping.group_of, groups)
    small, _ = scale_costs(work.astype(np.int64)[:, None], budget_array((None,)), groups)
    cells = assign_in_rows(rows, small, 0)
    return np.argsort(cells.ravel())[grouping.group_of], microbatches
