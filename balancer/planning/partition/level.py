"""Levelling: the last stage of a plan, which exchanges samples between the ranks that wait.

Grouping knows no ranks, and assigning whole groups leaves what their sizes leave. When it is known
which groups run side by side, exchanging single samples between them takes away most of the rest.
Where ranks wait once a step, the work of a rank's groups is levelled as one sum, in which what is
left of one resource makes up for what is left of another.
"""

import numpy as np

from ..grouping.groups import make_slots, read_slots
from ..kernels.arrays import Int64, Mask, Slots
from ..kernels.loops import level_steps
from ..problem.config import PlanConfig
from ..problem.loads import UNLIMITED, budget_array, count_kinds, group_loads, in_units, scale_costs
from ..problem.metrics import TILE_TOKENS

_SPARE = 4  # free places of a group for samples that move
_SEARCHES = 4  # per rank, of which each looks at so many other ranks:
_CANDIDATES, _CANDIDATES_ONCE = 4, 1
_TRIES, _TRIES_ONCE = 8, 32  # searches in vain after which a row, or a step, is given up
_SWEEPS = 2
_NEAR, _NEAR_ONCE = 8, 11  # what is above the mean by a part in 2**8, or in 2**11, is level


def level(
    config: PlanConfig, costs: Int64, group_of: Int64, cells: Int64, has: Mask | None = None
) -> Int64:
    """Return group_of (n,) after exchanges that even out ranks for config.waits, within budgets.

    costs (n, resources); cells (steps, ranks, accumulate): the group that each rank runs when; a
    sample in no group (-1) stays there. has (n,): which samples have what cells without it must not
    get, and the others not lose. Research of this project; no bound proven.
    """
    if cells.shape[1] < 2:
        return group_of
    inside = np.flatnonzero(group_of >= 0)
    if not len(inside):  # all samples are refused
        return group_of
    groups = 1 + max(int(group_of.max(initial=-1)), int(cells.max(initial=-1)))
    small, tight = scale_costs(costs[inside], budget_array(config.budgets), cells.size)
    has = None if has is None else has[inside]
    slots, limited, tight = _slots(config, small, tight, group_of[inside], groups, has)
    if config.buckets:
        loads = group_loads(costs, group_of, groups)
        slots.loads[:, : costs.shape[1]] += _above_buckets(config, loads, tight)
    if config.waits == "microbatch":
        contests, work = cells.transpose(0, 2, 1)[..., None], small
        turns = [
            (column, 0, small.shape[1]) for column in _coarsest_first(small).tolist()
        ] * _SWEEPS
        effort = (_SEARCHES, _CANDIDATES, _TRIES, _NEAR)
    else:
        contests, work = cells[:, None], _summed(config, costs[inside], small)
        # A column is guarded from its turn on; before, those ahead change it as they like. At last
        # the sum alone counts: a rank with a giant sample may have to give all else away.
        last = work.shape[1] - 1
        turns = [(column, 0, column + 1) for column in range(last + 1)] + [(last, last, last + 1)]
        effort = (_SEARCHES, _CANDIDATES_ONCE, _TRIES_ONCE, _NEAR_ONCE)
    contests = np.ascontiguousarray(contests)
    level_steps(slots, limited, tight, work, contests, np.array(turns), *effort)
    levelled = group_of.copy()
    levelled[inside] = read_slots(slots, len(inside))
    return levelled


def _slots(
    config: PlanConfig, small: Int64, tight: Int64, group_of: Int64, groups: int, has: Mask | None
) -> tuple[Slots, Int64, Int64]:
    """Return slots, and the costs and budgets by which exchanges between them are limited.

    With `has` they have two columns more, `has` and its opposite. By the limits 0 and -1, and what
    cells are said to hold of them, an exchange may add none where a cell has none, and must leave
    one where it has some.
    """
    # Where all have the same number of samples, samples are exchanged and none moves.
    spare = 0 if config.equal_counts else _SPARE
    if has is None:
        return make_slots(small, group_of, groups, spare), small, tight
    ours = has.astype(np.int64)[:, None]
    limited = np.hstack([small, ours, -ours])
    slots = make_slots(limited, group_of, groups, spare)
    images = slots.loads[:, -2].copy()
    slots.loads[:, -2] = np.where(images > 0, -(2**40), 0)
    slots.loads[:, -1] = np.where(images > 0, -images, -1)
    return slots, limited, np.append(tight, (0, -1))


def _above_buckets(config: PlanConfig, loads: Int64, tight: Int64) -> Int64:
    """Return the scaled budget above the bucket of each cell, which an exchange must not raise."""
    limits = budget_array(config.budgets)
    above = np.zeros_like(loads)
    sizes = config.sizing.bucketed(loads)
    for column, borders in config.sizing.buckets:
        above[:, column] = np.maximum(0, limits[column] - np.maximum(sizes[:, column], borders[0]))
    return in_units(above, tight, limits)


def _coarsest_first(costs: Int64) -> Int64:
    """Return the columns by the number of their different values."""
    return np.argsort(count_kinds(costs), kind="stable")


def _summed(config: PlanConfig, costs: Int64, small: Int64) -> Int64:
    """Return what counts once a step (n, columns): the work of a sample, as the last column.

    Before it come all resources but the finest, and their opposites: no rank may have much more of
    one than others, nor much less. So if a model weighs resources otherwise than is assumed here,
    the sums that it sees differ little from those that are levelled.
    """
    coarse = small[:, _coarsest_first(small)[:-1]]
    both = np.stack([coarse, -coarse], axis=2).reshape(len(small), -1)
    return np.column_stack([both, _work(config, costs, small)])


def _work(config: PlanConfig, costs: Int64, small: Int64) -> Int64:
    """Return each sample's work (n,), scaled: a tile as TILE_TOKENS tokens, as in all forecasts.

    By config.time_ns where it is given. Of other resources nothing is known: the sums of all count
    alike.
    """
    weights = dict(config.time_ns)
    if not weights and sorted(config.resources) != ["tiles", "tokens"]:
        return np.asarray(small.sum(axis=1))
    weights = weights or {"tiles": TILE_TOKENS, "tokens": 1}
    whole = (costs @ np.array([weights.get(name, 0) for name in config.resources]))[:, None]
    return scale_costs(whole, np.array([UNLIMITED]), len(costs))[0][:, 0]
