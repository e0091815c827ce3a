"""Partition of items by several resources at once, where ranks wait for the slowest in each.

Sums of one size can be even while every resource is uneven: a rank with all the images and one
with all the text do as much work, and each waits for the other in turn. So the largest load of
every resource must be low at the same time. Three phases: place items largest first, swap them
between parts while the sum of squares falls, then lower the largest loads themselves.
"""

import numpy as np

from ..grouping.groups import make_slots, read_slots
from ..kernels.arrays import Int64
from ..kernels.loops import lower_maxima, place_vectors, two_ended
from ..problem.costs import check_costs
from ..problem.loads import UNLIMITED, order_by_size, scale_costs
from .greedy import quotas

_ROUNDS = 40
_SEARCHES = 400
_CANDIDATES = 256


def multi_resource(costs: Int64, parts: int, equal: bool = False, seed: int = 0) -> Int64:
    """Return the part of each item, int64 (n,), for costs (n, resources): even in every resource.

    Longest processing time for vectors, two-ended swaps that lower the squares, then descent on
    the largest load of each resource (research of this project; no bound proven). equal=True
    keeps the parts' item counts equal, to within one.

    >>> multi_resource(np.array([[9, 1], [1, 9], [9, 1], [1, 9]]), parts=2).tolist()
    [0, 0, 1, 1]
    """
    costs = check_costs(costs, costs.shape[1])
    if not len(costs) or parts == 1:
        return np.zeros(len(costs), dtype=np.int64)
    unlimited = np.full(costs.shape[1], UNLIMITED)
    small, _ = scale_costs(costs, unlimited, parts)
    order = order_by_size(costs, small)
    small = small[order]
    room = np.array(quotas(len(costs), parts) if equal else [len(costs)] * parts, dtype=np.int64)
    part_of = np.empty(len(costs), dtype=np.int64)
    place_vectors(np.arange(len(small)), small, parts, room, part_of)
    moves = not equal
    slots = make_slots(small, part_of, parts, spare=8 if moves else 0)
    two_ended(slots, small, unlimited, np.arange(parts), _ROUNDS, seed, moves, _CANDIDATES, _ROUNDS)
    lower_maxima(slots, small, moves, _SEARCHES)
    part_of[order] = read_slots(slots, len(costs))
    return part_of
