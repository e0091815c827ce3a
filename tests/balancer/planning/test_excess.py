"""The exchange that lowers what is above the mean load, at its edges."""

import numpy as np

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.excess import find_excess_exchange, squared_excess_after


def test_groups_below_the_mean_are_left_alone() -> None:
    costs = np.array([[0, 1], [1, 0]]) << 19
    slots = make_slots(costs, np.array([0, 1]), 2, 4)
    assert find_excess_exchange(*slots, costs, np.full(2, 2**62), 0, 1, 0, True, 9) == (-1, -1)


def test_a_group_of_two_may_give_one_away_but_not_the_last() -> None:
    costs = np.array([[3], [3], [1]]) << 18
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    unlimited = np.full(1, 2**62)
    assert find_excess_exchange(*slots, costs, unlimited, 0, 1, 0, True, 9) == (slots.start[0], -1)
    alone = make_slots(costs * 2, np.array([0, 1, 1]), 2, 4)
    assert find_excess_exchange(*alone, costs * 2, unlimited, 0, 1, 0, True, 9) == (-1, -1)


def test_loads_far_above_the_mean_do_not_overflow() -> None:
    costs = np.array([[1 << 42], [1 << 42], [1 << 18]])
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    before = squared_excess_after(slots.loads, costs, np.full(1, 2**62), 0, 1, -1, -1)
    assert before == (2**27) ** 2
