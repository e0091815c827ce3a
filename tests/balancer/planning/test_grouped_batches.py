"""Batches that are made when they are asked for hold each group's samples, in order."""

import numpy as np
import pytest

from counterpoise.balancer.planning.planner import GroupedBatches
from counterpoise.balancer.planning.problem.config import GlobalBatch, Microbatch

GROUP_OF = np.array([2, 0, -1, 2, 1, 0, 3])
CELLS = [np.array([[2], [0]]), np.array([[1], [5]])]


@pytest.mark.parametrize("start", [10, 2**31 - 3, 2**40])
def test_batches_hold_their_groups_samples(start: int) -> None:
    batches = GroupedBatches(GROUP_OF, 6, CELLS, step=4, start=start)

    def microbatch(*rows: int) -> Microbatch:
        return Microbatch(tuple(start + row for row in rows))

    expected = (
        GlobalBatch(4, ((microbatch(0, 3),), (microbatch(1, 5),))),
        GlobalBatch(5, ((microbatch(4),), (microbatch(),))),
    )
    assert tuple(batches) == expected
    assert (len(batches), batches[-1], batches[:1]) == (2, expected[1], expected[:1])
    # The one without a group, and that of the group that no step uses, are in none.
    assert batches.samples == 5
    assert all(type(o) is int for b in batches for r in b.ranks for m in r for o in m.ordinals)


def test_there_is_no_batch_after_the_last() -> None:
    with pytest.raises(IndexError):
        GroupedBatches(GROUP_OF, 6, CELLS, 0, 0)[2]
