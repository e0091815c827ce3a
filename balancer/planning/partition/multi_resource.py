"""Partition by several resources at once: the ranks wait for the slowest in each of them."""

import numpy as np

from ..grouping.slots import fill_slots, read_slots
from ..kernels.arrays import Int64
from ..problem.config import check_costs
from ..problem.loads import UNLIMITED
from ..problem.scale import by_size, scaled
from .greedy import quotas

_ROUNDS = 40
_TRIES = 400
_LOOK = 256


def two_resource(costs: Int64, parts: int, equal: bool = False, seed: int = 0) -> Int64:
    """Return the part of each item, int64 (n,), for costs (n, resources): even in every resource.

    Longest processing time for vectors, two-ended swaps that lower the squares, then descent on
    the largest load of each resource (research of this project; no bound proven). equal=True
    keeps the parts' item counts equal, to within one.

    >>> two_resource(np.array([[9, 1], [1, 9], [9, 1], [1, 9]]), parts=2).tolist()
    [0, 0, 1, 1]
    """
    from ..kernels.partition import lower_maxima, place_vectors
    from ..kernels.swap import two_ended

    costs = check_costs(costs, costs.shape[1])
    if not len(costs) or parts == 1:
        return np.zeros(len(costs), dtype=np.int64)
    unlimited = np.full(costs.shape[1], UNLIMITED)
    small, _ = scaled(costs, unlimited, parts)
    order = by_size(costs, small)
    small = small[order]
    room = np.array(quotas(len(costs), parts) if equal else [len(costs)] * parts, dtype=np.int64)
    part_of = np.empty(len(costs), dtype=np.int64)
    place_vectors(np.arange(len(small)), small, parts, room, part_of)
    spare = 0 if equal else 8
    slots = fill_slots(small, part_of, parts, spare)
    active = np.arange(parts)
    two_ended(
        slots.items, slots.start, slots.count, slots.loads, small, unlimited,
        active, _ROUNDS, seed, not equal, _LOOK,
    )  # fmt: skip
    lower_maxima(slots.items, slots.start, slots.count, slots.loads, small, not equal, _TRIES)
    part_of[order] = read_slots(slots, len(costs))
    return part_of
