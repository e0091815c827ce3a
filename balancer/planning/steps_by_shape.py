"""Steps whose microbatches hold samples of one shape each, for `Shapes(bucket_by=...)`.

Pictures of one resolution, or clips of as many frames, make a batch without padding; others make
none. So a shape's samples are spread evenly over the microbatches that they need, and where steps
have room for more microbatches, the shapes with the largest get them. Then microbatches of like
work, whatever their shapes, form a step: side by side no rank waits long for another.

A step is made for a number of microbatches, not for a number of ranks: its microbatches are the
same for 8 ranks x 4 and for 32 ranks. So no samples are exchanged when it is known which run side
by side, as they are in other plans: most samples of a shape cost the same, and none may leave it.
"""

import heapq
from dataclasses import replace

import numpy as np

from .grouping.by_name import group_samples
from .kernels.arrays import Int64, Mask
from .problem.config import PlanConfig
from .problem.loads import budget_array, common_unit, group_loads, oversized
from .problem.shuffle import derive_seed, permutation
from .steps import ENOUGH_SAMPLES, ENOUGH_STEPS, ROOM, StepGroups

# Microbatches count as alike if what they cost differs by less than a part in 32, or in 16.
_LIKE = 32


def group_shapes(
    config: PlanConfig, costs: Int64, keys: Int64, seed: int, last: bool
) -> StepGroups:
    """Group a prefix of samples (n, resources) into whole steps of one key (n,) a microbatch.

    last: no samples follow, so that all are used, or those of whole steps with drop_last. Samples
    are in no group where microbatches may not be empty, and these are too few or of too many keys.
    """
    if config.grouping == "fixed" and config.mode == "epoch":
        return _group_full(config, costs, keys, seed)
    over, per_step = oversized(costs, budget_array(config.budgets)), config.least_microbatches
    bound, needed = _bound_by_shape(config, costs, keys, over)
    usable = np.cumsum(~over | (config.oversize != "refuse"))
    takes_all = last and not config.drop_last
    used, steps = _choose_extent(config, needed, last)
    while True:
        most = int(usable[used - 1]) // per_step
        if steps > most and not (config.empty_microbatches or config.spares):
            steps, takes_all = most, False
        if not steps:
            return StepGroups(np.full(len(costs), -1, dtype=np.int64), ())
        parts = steps * per_step
        samples = costs[:used], keys[:used], over[:used], bound[:used]
        group_of, groups = _pack(config, *samples, parts, seed)
        if groups <= parts:
            return _cut_by_work(config, costs[:used], group_of, parts, seed)
        if takes_all:
            steps = -(-groups // per_step)
        else:  # the bound was too low: take a little less than would fit in proportion
            least = int(np.searchsorted(usable, parts)) + 1
            used = max(least, min(used - 1, used * parts * 1023 // (1024 * groups)))


def _choose_extent(config: PlanConfig, needed: Int64, last: bool) -> tuple[int, int]:
    """Return how many of the samples steps use, and how many steps there are.

    needed (n,): the groups that each prefix needs at least.
    """
    count, per_step, size = len(needed), config.least_microbatches, config.samples_per_step
    least, counts = int(needed[-1]), config.grouping == "fixed" or config.mode == "epoch"
    # As in `group_prefix`: the number of samples decides where budgets have clearly more room.
    is_loose = not counts and count * per_step > least * (size + (size >> ROOM))
    steps, remainder = divmod(count, size) if is_loose else divmod(least, per_step)
    if last and not config.drop_last:
        return count, max(1, steps + (remainder > 0), is_loose * -(-least // per_step))
    if not last:
        # The last window has a step's samples at least: fewer may be too few for its microbatches.
        most = ENOUGH_STEPS if ENOUGH_STEPS * size >= ENOUGH_SAMPLES else steps
        steps = max(1, min(steps - 1, most))
    if not is_loose:
        return int(np.searchsorted(needed, steps * per_step, side="right")), steps
    return steps * size, max(steps, -(-int(needed[steps * size - 1]) // per_step) if steps else 0)


def _most_samples(config: PlanConfig) -> int | None:
    """Return how many samples a microbatch has at most where their number decides, else None."""
    if config.grouping == "fixed":
        return config.batch_size
    return -(-config.samples_per_step // config.least_microbatches) if config.equal_counts else None


def _sort_by_shape(keys: Int64, chosen: Mask) -> tuple[Int64, Int64, Int64]:
    """Return the numbers of chosen samples by key, where each key begins, and how many it has."""
    inside = np.flatnonzero(chosen)
    order = inside[np.argsort(keys[inside], kind="stable")]
    begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
    return order, begins, np.diff(begins, append=len(order))


def _bound_by_shape(
    config: PlanConfig, costs: Int64, keys: Int64, over: Mask
) -> tuple[Int64, Int64]:
    """Return (n,): the groups that samples up to each one need at least, of its shape, and of all.

    Those over budget, which are in no group with others, are of no shape.
    """
    bound, rises = np.zeros((2, len(costs)), dtype=np.int64)
    order, begins, lengths = _sort_by_shape(keys, ~over)
    if len(order):
        first, limits = np.repeat(begins, lengths), budget_array(config.budgets)
        ordered = costs[order]
        sums = np.cumsum(ordered, axis=0)
        sums -= (sums - ordered)[first]
        # So many of the smallest fit: if all cost the same, as often in a shape, just as many.
        most = (limits // np.maximum(np.minimum.reduceat(ordered, begins), 1)).min(axis=1)
        most = np.repeat(np.minimum(most, _most_samples(config) or len(order)), lengths)
        by_count = -(-(np.arange(len(order)) - first + 1) // most)
        bound[order] = np.maximum(by_count, (-(-sums // limits)).max(axis=1))
        before = np.append(0, bound[order[:-1]])
        before[begins] = 0
        rises[order] = bound[order] - before
    return bound, np.cumsum(np.where(over, config.oversize == "alone", rises))


def _pack(
    config: PlanConfig, costs: Int64, keys: Int64, over: Mask, bound: Int64, parts: int, seed: int
) -> tuple[Int64, int]:
    """Return each sample's group, and `parts`; or nothing of use, and how many are needed.

    A sample over budget is alone, or in no group (-1) if it is refused.
    """
    group_of = np.full(len(costs), -1, dtype=np.int64)
    outside = np.flatnonzero(over & (config.oversize == "alone"))
    order, begins, _ = _sort_by_shape(keys, ~over)
    shapes = np.split(order, begins[1:]) if len(order) else []
    # What microbatches should have about as much of as others.
    sizes = common_unit(costs, len(costs)).sum(axis=1)
    work = [int(sizes[s].sum()) if _most_samples(config) is None else len(s) for s in shapes]
    least, left = list[int](), parts - len(outside)
    for shape in shapes:  # what placement alone takes: refinement needs most of the time
        low = int(bound[shape[-1]])
        least.append(max(low, _pack_shape(config, costs[shape], low, seed, refine_up_to=0)[1]))
    packed: dict[int, tuple[int, Int64, int]] = {}
    while sum(least) <= left:
        shares = _share_groups(work, least, [len(shape) for shape in shapes], left)
        for number, (shape, share) in enumerate(zip(shapes, shares, strict=True)):
            if number not in packed or packed[number][0] != share:
                packed[number] = (share, *_pack_shape(config, costs[shape], share, seed, share))
        if all(groups <= share for share, _, groups in packed.values()):
            firsts = np.cumsum([0, *shares])
            for number, shape in enumerate(shapes):
                group_of[shape] = firsts[number] + packed[number][1]
            group_of[outside] = firsts[-1] + np.arange(len(outside))
            return group_of, parts
        least = [max(low, packed[number][2]) for number, low in enumerate(least)]
    return group_of, sum(least) + len(outside)


def _share_groups(work: list[int], least: list[int], most: list[int], parts: int) -> list[int]:
    """Return the groups of each shape, `parts` together: more where each would hold most work.

    >>> _share_groups([90, 20, 30], least=[3, 1, 1], most=[9, 9, 1], parts=8)
    [5, 2, 1]
    """
    shares = [*least]
    heap = [(-load // shares[k], k) for k, load in enumerate(work) if shares[k] < most[k]]
    heapq.heapify(heap)
    for _ in range(min(parts, sum(most)) - sum(shares)):
        shape = heapq.heappop(heap)[1]
        shares[shape] += 1
        if shares[shape] < most[shape]:
            heapq.heappush(heap, (-work[shape] // shares[shape], shape))
    return shares


def _pack_shape(
    config: PlanConfig, costs: Int64, parts: int, seed: int, refine_up_to: int
) -> tuple[Int64, int]:
    """Return the groups of one shape's samples, and how many they are: `parts` where these do."""
    if config.grouping == "fixed" or not (costs != costs[0]).any():
        return np.arange(len(costs)) * parts // len(costs), parts
    result = group_samples(config, costs, parts, seed, refine_up_to)
    return result.group_of, result.groups


def _cut_by_work(
    config: PlanConfig, costs: Int64, group_of: Int64, parts: int, seed: int
) -> StepGroups:
    """Return steps of groups of like work, drawn at random among these, in random order."""
    sizes = common_unit(costs, len(costs)).sum(axis=1)
    loads = group_loads(sizes[:, None], group_of, parts)[:, 0]
    mantissa, exponent = np.frexp(loads.astype(np.float64))
    alike = exponent * _LIKE + (mantissa * _LIKE).astype(np.int64)
    order = permutation(parts, derive_seed(seed, 1), 0)
    order = order[np.argsort(-alike[order], kind="stable")]
    steps = order.reshape(-1, config.least_microbatches)
    return StepGroups(group_of, tuple(steps[permutation(len(steps), derive_seed(seed, 2), 0)]))


def _group_full(config: PlanConfig, costs: Int64, keys: Int64, seed: int) -> StepGroups:
    """Group all samples (n, resources) into batch_size each, but for the last steps.

    These have what is left of each shape, beside one or two steps' number of full groups.
    """
    size, per_step = config.batch_size or 1, config.least_microbatches
    order, begins, lengths = _sort_by_shape(keys, keys >= 0)
    place = np.arange(len(order)) - np.repeat(begins, lengths)
    full = order[place < np.repeat(lengths // size * size, lengths)].reshape(-1, size)
    parts = max(0, len(full) // per_step - (not config.drop_last)) * per_step
    group_of = np.full(len(costs), -1, dtype=np.int64)
    chosen = full[permutation(len(full), derive_seed(seed, 3), 0)[:parts]]
    group_of[chosen] = np.arange(parts)[:, None]
    head = _cut_by_work(config, costs, group_of, parts, seed).steps
    tail = np.flatnonzero(group_of < 0)
    if config.drop_last or not len(tail):
        return StepGroups(group_of, head)
    short = replace(config, mode="window", samples_per_step=per_step * size)
    end = group_shapes(short, costs[tail], keys[tail], seed, last=True)
    group_of[tail[: end.used]] = np.where(end.group_of < 0, -1, end.group_of + parts)
    return StepGroups(group_of, (*head, *(step + parts for step in end.steps)))
