"""Placing vectors and lowering the largest loads, against plain lists and all exchanges."""

import numpy as np
import pytest

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels.partition import lower_maxima, place_vectors
from tests.balancer.planning.kernels import plain


def plain_place(costs: np.ndarray, order: list[int], room: list[int]) -> list[int]:
    """Each item to the part with room whose score after it is least; the first of several."""
    held: plain.Groups = [[] for _ in room]
    for item in order:

        def score(part: int, item: int = item) -> int:
            loads = plain.sums(costs, [*held[part], item])
            return (len(loads) + 2) * max(loads) - sum(loads)

        free = [part for part in range(len(room)) if len(held[part]) < room[part]]
        held[min(free, key=score)].append(item)
    part_of = {item: part for part, items in enumerate(held) for item in items}
    return [part_of[item] for item in range(len(costs))]


@pytest.mark.parametrize("resources", [1, 2, 3])
def test_each_vector_goes_where_the_score_is_least(resources: int) -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        costs = draw.integers(0, 40, (14, resources))
        order = draw.permutation(14)
        room = [5, 3, 8, 2] if seed % 2 else [14] * 4
        part_of = np.zeros(14, dtype=np.int64)
        left = np.array(room)
        loads = place_vectors(order, costs, 4, left, part_of)
        assert part_of.tolist() == plain_place(costs, order.tolist(), room)
        held = [np.flatnonzero(part_of == part).tolist() for part in range(4)]
        assert loads.tolist() == [plain.sums(costs, items) for items in held]
        assert left.tolist() == [most - len(items) for most, items in zip(room, held, strict=True)]


def plain_lower(
    groups: plain.Groups, room: list[int], costs: np.ndarray, moves: bool, searches: int
) -> int:
    """Lower the largest loads in turn, each time by the best of all exchanges."""
    resources = costs.shape[1]
    changes = stuck = turn = 0
    while stuck < resources and turn < searches:
        r = turn % resources
        turn += 1
        loads = [plain.sums(costs, group) for group in groups]
        top = [max(column) for column in zip(*loads, strict=True)]
        high = [load[r] for load in loads].index(top[r])
        best, found = top[r], None
        for low in range(len(groups)):
            if low == high:
                continue
            one_way = [None] if moves and len(groups[high]) > 1 else []
            for give in range(len(groups[high])):
                for take in [*range(len(groups[low])), *one_way]:
                    ours, theirs = (
                        plain.sums(costs, each)
                        for each in plain.after(groups, high, low, (give, take))
                    )
                    worst = max(ours[r], theirs[r])
                    within = all(
                        load <= most for each in (ours, theirs)
                        for load, most in zip(each, top, strict=True)
                    )  # fmt: skip
                    if ours[r] < loads[high][r] and worst < best and within:
                        best, found = worst, (low, give, take)
        if found is None or (found[2] is None and len(groups[found[0]]) == room[found[0]]):
            stuck += 1
            continue
        stuck = 0
        changes += 1
        low, *exchange = found
        groups[high], groups[low] = plain.after(groups, high, low, (exchange[0], exchange[1]))
    return changes


@pytest.mark.parametrize("resources", [1, 2, 3])
@pytest.mark.parametrize("moves", [False, True])
def test_the_largest_loads_are_lowered_by_the_best_of_all_exchanges(
    resources: int, moves: bool
) -> None:
    total = 0
    for seed in range(12):
        draw = np.random.default_rng(seed)
        costs = draw.integers(0, 60, (16, resources))
        group_of = np.append(np.arange(4), draw.integers(0, 4, 12))
        slots = make_slots(costs, group_of, 4, 1 + seed % 3)
        groups, room = plain.groups_of(slots), np.diff(slots.start).tolist()
        before = slots.loads.max(axis=0)
        searches = 5 if seed % 4 == 3 else 60
        changes = lower_maxima(slots, costs, moves, searches)
        assert changes == plain_lower(groups, room, costs, moves, searches)
        assert plain.groups_of(slots) == groups
        assert (slots.loads.max(axis=0) <= before).all()
        total += changes
    assert total > 20
