"""The exchange that lowers what is above the mean load, at its edges."""

import numpy as np

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.arrays import Slots
from counterpoise.balancer.planning.kernels.swap import best_exchange, squared_excess_after

UNLIMITED = np.full(1, 2**62)


def exchange_of_first_two(slots: Slots, costs: np.ndarray) -> tuple[int, int]:
    budgets, gap = (np.full(costs.shape[1], number) for number in (2**62, 0))
    return best_exchange(*slots, costs, budgets, 0, 1, gap, 0, True, 9, True)


def test_groups_below_the_mean_are_left_alone() -> None:
    costs = np.array([[0, 1], [1, 0]]) << 19
    slots = make_slots(costs, np.array([0, 1]), 2, 4)
    assert exchange_of_first_two(slots, costs) == (-1, -1)


def test_a_group_of_two_may_give_one_away_but_not_the_last() -> None:
    costs = np.array([[3], [3], [1]]) << 18
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    assert exchange_of_first_two(slots, costs) == (slots.start[0], -1)
    alone = make_slots(costs * 2, np.array([0, 1, 1]), 2, 4)
    assert exchange_of_first_two(alone, costs * 2) == (-1, -1)


def test_loads_far_above_the_mean_do_not_overflow() -> None:
    costs = np.array([[1 << 42], [1 << 42], [1 << 18]])
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    before = squared_excess_after(slots.loads, costs, UNLIMITED, 0, 1, -1, -1)
    assert before == (2**27) ** 2
