"""The exchange that lowers what is above the mean load, against all exchanges there are."""

from itertools import product

import numpy as np
import pytest

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.excess import excess_after, lower_excess
from counterpoise.balancer.planning.kernels.swap import exchange
from counterpoise.balancer.planning.problem.loads import group_loads


@pytest.mark.parametrize("seed", range(6))
def test_the_exchange_found_leaves_the_least_above_the_mean(seed: int) -> None:
    costs = np.random.default_rng(seed).integers(0, 2**19, (10, 2))
    group_of = np.arange(10) % 2

    def excess(loads: np.ndarray) -> int:
        return int((np.maximum(loads - 2**20, 0) ** 2).sum())

    slots = make_slots(costs, group_of, 2, 4)
    each = [None, *range(10)]
    outcomes = []
    for give, take in product(each, each):
        moved = group_of.copy()
        for item, side in ((give, 0), (take, 1)):
            if item is not None:
                if group_of[item] != side:
                    break
                moved[item] = 1 - side
        else:
            outcomes.append(excess(group_loads(costs, moved, 2)))
    before = excess(slots.loads)
    give, take = lower_excess(*slots, costs, np.full(2, 2**62), 0, 1, 0, True, 9)
    if give >= 0 or take >= 0:
        exchange(*slots, costs, 0, 1, give, take)
    assert excess(slots.loads) == min(outcomes) < before


def test_groups_below_the_mean_are_left_alone() -> None:
    costs = np.array([[0, 1], [1, 0]]) << 19
    slots = make_slots(costs, np.array([0, 1]), 2, 4)
    assert lower_excess(*slots, costs, np.full(2, 2**62), 0, 1, 0, True, 9) == (-1, -1)


def test_a_group_of_two_may_give_one_away_but_not_the_last() -> None:
    costs = np.array([[3], [3], [1]]) << 18
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    unlimited = np.full(1, 2**62)
    assert lower_excess(*slots, costs, unlimited, 0, 1, 0, True, 9) == (slots.start[0], -1)
    alone = make_slots(costs * 2, np.array([0, 1, 1]), 2, 4)
    assert lower_excess(*alone, costs * 2, unlimited, 0, 1, 0, True, 9) == (-1, -1)


def test_loads_far_above_the_mean_do_not_overflow() -> None:
    costs = np.array([[1 << 42], [1 << 42], [1 << 18]])
    slots = make_slots(costs, np.array([0, 0, 1]), 2, 4)
    before = excess_after(slots.loads, costs, np.full(1, 2**62), 0, 1, -1, -1)
    assert before == (2**27) ** 2
