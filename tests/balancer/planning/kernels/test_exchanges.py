"""Exchanges of two groups and the rounds of them, against all exchanges there are."""

import numpy as np
import pytest

from counterpoise.balancer.planning.grouping.groups import make_slots
from counterpoise.balancer.planning.kernels import swap
from counterpoise.balancer.planning.kernels.arrays import Slots
from tests.balancer.planning.kernels import plain

MASK = 2**64 - 1


def drawn(seed: int, groups: int, samples: int, spare: int = 1) -> tuple[Slots, np.ndarray]:
    """Groups of some samples, in units where the mean of a group is about 2**20."""
    draw = np.random.default_rng(seed)
    costs = draw.integers(0, 2**21 * groups // samples, (samples, 1 + seed % 3))
    group_of = np.append(np.arange(groups), draw.integers(0, groups, samples - groups))
    return make_slots(costs, group_of, groups, spare), costs


def places(slots: Slots, high: int, low: int, exchange: plain.Exchange) -> tuple[int, int]:
    give, take = exchange
    start = slots.start
    return (
        -1 if give is None else int(start[high]) + give,
        -1 if take is None else int(start[low]) + take,
    )


@pytest.mark.parametrize("measure", [plain.squares, plain.excess])
@pytest.mark.parametrize("moves", [False, True])
def test_the_best_exchange_is_the_best_of_all(measure: object, moves: bool) -> None:
    found = []
    for seed in range(60):
        slots, costs = drawn(seed, 3, 14)
        budgets = slots.loads.max(axis=0) + (0 if seed % 2 else 2**62)
        groups, candidates = plain.groups_of(slots), 2 + seed % 6
        gap = np.zeros(costs.shape[1], dtype=np.int64)
        expected = places(slots, 1, 2, plain.best_exchange(
            groups, costs, budgets.tolist(), 1, 2, seed, moves, candidates, measure,  # type: ignore[arg-type]
        ))  # fmt: skip
        given = swap.best_exchange(
            *slots, costs, budgets, 1, 2, gap, seed, moves, candidates, measure is plain.excess
        )
        assert tuple(map(int, given)) == expected, seed
        found.append(expected)
    one_way = [pair for pair in found if pair[0] < 0 <= pair[1] or pair[1] < 0 <= pair[0]]
    assert len(set(found)) > 10
    assert bool(one_way) == moves


def view(loads: np.ndarray, active: list[int], turn: int) -> tuple[list[int], bool]:
    """The order of groups in a round, and whether the lowest is farther from the median."""
    chosen = loads[active]
    spread = np.abs(chosen - chosen.sum(axis=0) // len(active)).sum(axis=0)
    main = int(spread.argmax())
    rest = chosen.sum(axis=1) - chosen[:, main]
    keys = [chosen[:, main], rest + chosen[:, main] // 4, chosen[:, main], chosen[:, main] - rest]
    key = keys[turn % 4]
    median = np.sort(key)[[(len(key) - 1) // 2, len(key) // 2]].sum()
    farther = bool(median - 2 * key.min() > 2 * key.max() - median)
    return np.argsort(key, kind="stable").tolist(), farther


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 32, 33, 100, 519])
def test_the_compiled_sort_is_numpys(count: int) -> None:
    for different in (3, 100, 2**40):
        key = np.random.default_rng(count).integers(-different, different, count)
        for keys in (key, np.sort(key), -np.sort(-key)):
            ends, spare = np.full(count, -1), np.full(count, -1)
            swap.sort(keys, ends, spare)
            assert ends.tolist() == np.argsort(keys, kind="stable").tolist()


def pairs(size: int, turn: int, random: int, low_end_farther: bool) -> list[tuple[int, int]]:
    """The places of the groups that meet in a round, low and high, each pair's."""
    half = size // 2
    if turn % 4 != 2:
        shift = random % (size // 8 + 1) if turn >= 4 else 0
        return [((x + shift) % half, size - 1 - x) for x in range(half)]
    tail = size // 16 + 1
    near = [x % tail for x in range(half)]
    others = [(x + random % size) % (size - tail) for x in range(half)]
    if low_end_farther:
        return [(n, size - 1 - o) for n, o in zip(near, others, strict=True)]
    return [(o, size - 1 - n) for n, o in zip(near, others, strict=True)]


def two_ended(
    groups: plain.Groups, room: list[int], costs: np.ndarray, budgets: list[int],
    active: list[int], rounds: int, seed: int, moves: bool, candidates: int, excess_from: int,
) -> int:  # fmt: skip
    """The rounds of exchanges, on plain lists; returns how many were made."""
    state, changes, quiet = seed, 0, 0
    for turn in range(rounds):
        loads = np.array([plain.sums(costs, group) for group in groups])
        ends, farther = view(loads, active, turn)
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        before = changes
        for bottom, top in pairs(len(active), turn, mixed ^ mixed >> 27, farther):
            high, low = active[ends[top]], active[ends[bottom]]
            give, take = plain.best_exchange(
                groups, costs, budgets, high, low, turn, moves, candidates,
                plain.excess if turn >= excess_from else plain.squares,
            )  # fmt: skip
            full = (take is None and len(groups[low]) == room[low]) or (
                give is None and len(groups[high]) == room[high]
            )
            if (give, take) != (None, None) and not full:
                groups[high], groups[low] = plain.after(groups, high, low, (give, take))
                changes += 1
        quiet = quiet + 1 if changes == before else 0
        if quiet == 8:
            break
    return changes


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_exchanges_are_what_plain_lists_give(seed: int, moves: bool) -> None:
    count = 20 if seed == 3 else 5 + seed % 4
    slots, costs = drawn(seed, count, 5 * count)
    budgets = slots.loads.max(axis=0) + (0 if seed % 2 else 2**62)
    active = [group for group in range(count) if group != 1]
    groups, room = plain.groups_of(slots), np.diff(slots.start).tolist()
    arguments = (24, seed, moves, 3, 9)
    expected = two_ended(groups, room, costs, budgets.tolist(), active, *arguments)
    with np.errstate(over="ignore"):
        changes = swap.two_ended(slots, costs, budgets, np.array(active), *arguments)
    assert (changes, plain.groups_of(slots)) == (expected, groups)
    assert changes > 0
    assert slots.loads.tolist() == [plain.sums(costs, group) for group in groups]
