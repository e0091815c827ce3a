"""Every compiled loop agrees, bit by bit, with a plain one, and with its own source."""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels import loops as kernels, swap
from counterpoise.balancer.planning.kernels.arrays import Slots
from counterpoise.balancer.planning.kernels.loops import (
    assign_rows,
    place,
    sample_and_filter,
    shuffle,
    two_ended,
)
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.problem.loads import group_loads

MASK = 2**64 - 1


def draw(seed: int, samples: int, resources: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, (samples, resources))


def plain_shuffle(items: list[int], seed: int) -> list[int]:
    state = seed
    for last in range(len(items) - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
        other = mixed % (last + 1)
        items[last], items[other] = items[other], items[last]
    return items


@given(count=st.integers(0, 50), seed=st.integers(0, 2**62))
@settings(deadline=None)
def test_shuffle(count: int, seed: int) -> None:
    items = np.arange(count)
    shuffle(items, seed)
    assert items.tolist() == plain_shuffle(list(range(count)), seed)


def test_swap() -> None:
    items, partners = np.arange(5), np.array([3, 3, 2, 4])
    kernels.swap(items, partners)
    assert items.tolist() == [3, 0, 2, 4, 1]


def plain_filter(
    items: list[int], costs: list[list[int]], budgets: list[int], targets: list[int]
) -> tuple[list[list[int]], list[int]]:
    """OmniBal's Algorithm 1, line by line: candidates by next-fit, then the filter."""
    candidates: list[list[int]] = []
    for item in items:
        trial = [*candidates[-1], item] if candidates else [item]
        sums = [sum(costs[k][r] for k in trial) for r in range(len(budgets))]
        if candidates and all(s <= b for s, b in zip(sums, budgets, strict=True)):
            candidates[-1].append(item)
        else:
            candidates.append([item])
    kept, left = [], []
    for group in candidates:
        sums = [sum(costs[k][r] for k in group) for r in range(len(budgets))]
        if any(s >= t for s, t in zip(sums, targets, strict=True)):
            kept.append(group)
        else:
            left += group
    return kept, left


@given(seed=st.integers(0, 50), samples=st.integers(0, 40))
@settings(deadline=None)
def test_sample_and_filter(seed: int, samples: int) -> None:
    costs = draw(seed, samples)
    items, group_of = np.arange(samples), np.full(samples, -1)
    limits, targets = np.array([150, 170]), np.array([140, 160])
    groups, left = sample_and_filter(items, costs, limits, targets, 5, group_of)
    kept, rest = plain_filter(list(range(samples)), costs.tolist(), [150, 170], [140, 160])
    expected = np.full(samples, -1)
    for number, group in enumerate(kept, start=5):
        expected[group] = number
    assert group_of.tolist() == expected.tolist()
    assert (groups - 5, items[:left].tolist()) == (len(kept), rest)


def plain_place(
    order: list[int], costs: list[list[int]], budgets: list[int], groups: int
) -> tuple[list[int], int]:
    """Try every group; ties go to the first in the order that the kernel keeps: by score."""
    resources = len(budgets)
    loads = {g: [0] * resources for g in range(groups)}
    ranked, empty = list(range(groups)), groups
    score = dict.fromkeys(range(groups), 0)
    group_of = [0] * len(costs)

    def after(group: int, item: int) -> list[int]:
        return [a + b for a, b in zip(loads[group], costs[item], strict=True)]

    def value(load: list[int]) -> int:
        return (resources + 2) * max(load) - sum(load)

    for item in order:
        fits = [
            g
            for g in ranked[max(0, empty - 1) :]
            if all(a <= b for a, b in zip(after(g, item), budgets, strict=True))
        ]
        if fits:
            group = min(fits, key=lambda g: (value(after(g, item)), ranked.index(g)))
            empty -= ranked.index(group) == empty - 1
        else:
            group = len(ranked)
            ranked.append(group)
            loads[group] = [0] * resources
        loads[group] = after(group, item)
        score[group] = value(loads[group])
        place_ = ranked.index(group)
        while place_ + 1 < len(ranked) and score[ranked[place_ + 1]] < score[group]:
            ranked[place_], ranked[place_ + 1] = ranked[place_ + 1], ranked[place_]
            place_ += 1
        while place_ > empty and score[ranked[place_ - 1]] > score[group]:
            ranked[place_], ranked[place_ - 1] = ranked[place_ - 1], ranked[place_]
            place_ -= 1
        group_of[item] = group
    return group_of, len(ranked)


@given(seed=st.integers(0, 50), samples=st.integers(1, 40), groups=st.integers(1, 8))
@settings(deadline=None)
def test_place(seed: int, samples: int, groups: int) -> None:
    costs, budgets = draw(seed, samples), np.array([230, 190])
    order = np.argsort(-costs.sum(axis=1), kind="stable")
    group_of = np.empty(samples, dtype=np.int64)
    loads = np.zeros((samples + groups, 2), dtype=np.int64)
    found = place(order, costs, budgets, groups, group_of, loads)
    expected, count = plain_place(order.tolist(), costs.tolist(), budgets.tolist(), groups)
    assert (group_of.tolist(), found) == (expected, count)
    assert np.array_equal(loads[:found], group_loads(costs, group_of, found))


@pytest.mark.parametrize("seed", [5, 10, 41, 46, 52, 66])
def test_place_ranks_groups_that_it_opens(seed: int) -> None:
    # steps in which a wrong score of a new group sends a later sample elsewhere
    generator = np.random.default_rng(seed)
    samples, groups = int(generator.integers(5, 40)), 1 + seed % 4
    costs, budgets = generator.integers(0, 100, (samples, 2)), np.array([120, 110])
    order = np.argsort(-costs.sum(axis=1), kind="stable")
    group_of = np.empty(samples, dtype=np.int64)
    loads = np.zeros((samples + groups, 2), dtype=np.int64)
    found = place(order, costs, budgets, groups, group_of, loads)
    expected = plain_place(order.tolist(), costs.tolist(), budgets.tolist(), groups)
    assert (group_of.tolist(), found) == expected
    assert found > groups


def plain_assign(rows: np.ndarray, order: np.ndarray, deviations: np.ndarray) -> list[list[int]]:
    ranks = rows.shape[1]
    gathered = [[0] * deviations.shape[1] for _ in range(ranks)]
    assigned: list[list[int]] = [[] for _ in range(ranks)]
    for row, choice in zip(rows, order, strict=True):
        free = list(range(ranks))
        for place_ in choice:
            adds = deviations[row[place_]].tolist()
            products = [sum(a * b for a, b in zip(gathered[x], adds, strict=True)) for x in free]
            k = products.index(min(products))
            rank = free[k]
            free[k] = free[-1]
            free.pop()
            assigned[rank].append(int(row[place_]))
            gathered[rank] = [a + b for a, b in zip(gathered[rank], adds, strict=True)]
    return assigned


@given(seed=st.integers(0, 30), ranks=st.integers(1, 6), rows=st.integers(1, 5))
@settings(deadline=None)
def test_assign_rows(seed: int, ranks: int, rows: int) -> None:
    deviations = draw(seed, ranks * rows) - 50
    table = np.arange(ranks * rows).reshape(rows, ranks)
    sizes = np.abs(deviations).sum(axis=1)[table]
    order = np.argsort(-sizes, axis=1, kind="stable")
    assigned = assign_rows(table, order, deviations)
    assert assigned.tolist() == plain_assign(table, order, deviations)


def plain_run(pipeline: PipelineEvaluator, order: list[int]) -> int:
    """Each rank's program by itself, waiting for what others finish."""
    ends: dict[int, int] = {}
    clock = [0] * pipeline.ranks
    for k, (rank, after) in enumerate(zip(pipeline.rank, pipeline.after, strict=True)):
        begin = max(clock[rank], ends[after] if after >= 0 else 0)
        clock[rank] = ends[k] = begin + int(
            pipeline.costs[pipeline.row[k], order[pipeline.place[k]]]
        )
    return max(ends.values())


@given(seed=st.integers(0, 30), ranks=st.integers(1, 4), count=st.integers(1, 8))
@settings(deadline=None)
def test_run_and_two_opt(seed: int, ranks: int, count: int) -> None:
    costs = np.random.default_rng(seed).integers(0, 90, (ranks, count))
    pipeline = PipelineEvaluator.one_forward_one_backward(ranks, costs)
    order = np.random.default_rng(seed).permutation(count)
    assert pipeline(order) == plain_run(pipeline, order.tolist())
    current, best, better = order.tolist(), plain_run(pipeline, order.tolist()), True
    while better:
        better = False
        for a in range(count - 1):
            for b in range(a + 1, count):
                trial = current.copy()
                trial[a], trial[b] = trial[b], trial[a]
                if (time := plain_run(pipeline, trial)) < best:
                    current, best, better = trial, time, True
    assert pipeline.two_opt(order, 10**6).tolist() == current


def plain_two_opt(pipeline: PipelineEvaluator, most: int) -> list[int]:
    """One sweep over all pairs, with at most `most` makespans."""
    order = list(range(5))
    best, done = plain_run(pipeline, order), 1
    for a, b in combinations(range(5), 2):
        if done == most:
            break
        trial = order.copy()
        trial[a], trial[b] = trial[b], trial[a]
        done += 1
        if (time := plain_run(pipeline, trial)) < best:
            order, best = trial, time
    return order


def test_two_opt_stops_when_its_makespans_are_used_up() -> None:
    found = set()
    for seed in range(6):
        costs = np.random.default_rng(seed).integers(0, 90, (3, 5))
        pipeline = PipelineEvaluator.one_forward_one_backward(3, costs)
        for most in range(1, 11):
            expected = plain_two_opt(pipeline, most)
            assert pipeline.two_opt(np.arange(5), most).tolist() == expected
            found.add(tuple(expected))
    assert len(found) > 10


def arrays_of(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments, those that are Slots as their arrays."""
    for argument in arguments:
        yield from argument if isinstance(argument, Slots) else (argument,)


def same_as_python(compiled: Any, source: Any, make: Callable[[], tuple[Any, ...]]) -> None:
    """Run a kernel compiled and as plain Python on equal arguments; all arrays end equal."""
    ours, plain = make(), make()
    assert np.array_equal(compiled(*ours), source(*plain))
    for one, other in zip(arrays_of(ours), arrays_of(plain), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("groups", [16, 17, 33, 100, 700])
def test_many_groups_are_sorted_as_numpy_does(groups: int) -> None:
    # compiled they are merged, and many loads are equal
    costs = draw(groups, 3 * groups) // 10 << 17
    group_of = np.random.default_rng(groups).permutation(3 * groups) % groups

    def arguments() -> tuple[Any, ...]:
        slots = make_slots(costs, group_of, groups, 2)
        return slots, costs, np.full(2, 2**62), np.arange(groups), 9, groups, True, 4, 8

    same_as_python(two_ended, swap.two_ended, arguments)


def test_sums_of_deviations_are_cut_before_they_overflow() -> None:
    most, resources = 2**29 - 1, 31
    deviations = np.zeros((10, resources), np.int64)
    deviations[::2] = most  # of each row one group, and the last one of the last row chooses first
    rows = np.arange(10).reshape(5, 2)
    order = np.array([[1, 0]] * 4 + [[0, 1]])
    assigned = assign_rows(rows, order, deviations)
    # Rank 0 had the groups without work, and now takes the one with all of it.
    assert assigned.tolist() == [[1, 3, 5, 7, 8], [0, 2, 4, 6, 9]]
