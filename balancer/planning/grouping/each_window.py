"""The default grouping of several small windows at once: see `balanced`.

Each array has all windows, so that numpy is called once for all; only the compiled loops go from
window to window.
"""

from collections.abc import Sequence

import numpy as np

from ..kernels.arrays import Int64
from ..problem.loads import UNIT, UNLIMITED, scale_each
from .balanced import CANDIDATES, ROUNDS
from .groups import make_slots, read_slots

_SPARE = 4  # free places of a group for samples that move


def balanced_each(costs: Int64, limits: Int64, parts: int, seeds: Sequence[int]) -> Int64:
    """Return the groups (w, n) of the first w windows of costs (windows, n, resources).

    They are those of `balanced`, where it makes `parts` groups and no sample is over budget; the
    first window of which that is not known is left out, with all after it. limits (resources,):
    budgets, UNLIMITED for none, of which there is one at least. `seeds`: a number for each window.
    """
    small, tight, is_scaled = scale_each(costs, limits, parts)
    fits = is_scaled & (costs <= limits).all(axis=(1, 2))
    count = int(fits.argmin()) if not fits.all() else len(fits)
    costs, tight = costs[:count], tight[:count]
    # Rounded down, a budget may be below a sample of just that budget; see `balanced`.
    small = np.minimum(small[:count], tight[:, None])
    keys = [-costs[..., column] for column in range(costs.shape[2])]
    order = np.lexsort((*keys, -small.sum(axis=2)), axis=-1)
    small = np.take_along_axis(small, order[..., None], axis=1)
    inner = _placed(small, tight, limits, parts)
    inner = _refined(small, tight, inner, parts, seeds)
    group_of = np.empty_like(inner)
    np.put_along_axis(group_of, order[: len(inner)], inner, axis=1)
    return group_of


def _placed(small: Int64, tight: Int64, limits: Int64, parts: int) -> Int64:
    """Place sorted samples by the resources that have budgets, as far as `parts` groups do."""
    from ..kernels.pack import place

    capped = np.flatnonzero(limits < UNLIMITED)
    small, tight = np.ascontiguousarray(small[..., capped]), tight[:, capped]
    windows, samples, resources = small.shape
    inner = np.empty((windows, samples), dtype=np.int64)
    loads = np.zeros((windows, samples + parts, resources), dtype=np.int64)
    order = np.arange(samples)
    for window in range(windows):
        budgets = tight[window]
        if place(order, small[window], budgets, parts, inner[window], loads[window]) != parts:
            return inner[:window]
    return inner


def _refined(small: Int64, tight: Int64, inner: Int64, parts: int, seeds: Sequence[int]) -> Int64:
    """Refine what was placed, as `balanced.refine` does: the groups of all windows are slots."""
    from ..kernels.swap import two_ended

    windows, samples = inner.shape
    numbers = np.arange(windows * parts).reshape(windows, parts)
    flat = small[:windows].reshape(windows * samples, small.shape[2])
    slots = make_slots(flat, (inner + numbers[:, :1]).ravel(), numbers.size, _SPARE)
    full_alone = (slots.counts == 1) & (slots.loads > UNIT - UNIT // 16).any(axis=1)
    for own, budgets, seed in zip(numbers, tight, seeds, strict=False):
        active = own[~full_alone[own]]
        if len(active) > 1:
            two_ended(slots, flat, budgets, active, ROUNDS, seed, True, CANDIDATES, ROUNDS)
    return read_slots(slots, len(flat)).reshape(windows, samples) - numbers[:, :1]
