"""Cutting sorted samples into padded microbatches and rows, against trying everything."""

from functools import cache

import numpy as np
import pytest

from counterpoise.balancer.planning.kernels import padded


def drawn(seed: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Sizes that descend, and where microbatches end at the latest."""
    draw = np.random.default_rng(seed)
    sizes = np.sort(draw.integers(1, 30, samples))[::-1].copy()
    longest = draw.integers(1, 6) if seed % 2 else samples
    return sizes, np.minimum(np.arange(samples) + longest, samples)


@pytest.mark.parametrize("is_padded", [(0, 0), (1, 0), (1, 1)])
def test_a_microbatch_ends_before_the_first_sample_over_budget(is_padded: tuple[int, int]) -> None:
    for seed in range(10):
        columns = np.random.default_rng(seed).integers(0, 20, (12, 2))
        budgets = [30 + seed, 45]

        def load(begin: int, end: int, r: int, columns: np.ndarray = columns) -> int:
            held = columns[begin:end, r].tolist()
            return len(held) * max(held) if is_padded[r] else sum(held)

        expected = []
        for begin in range(12):
            within = [
                end for end in range(begin + 1, 13)
                if all(load(begin, at, r) <= budgets[r] for r in (0, 1)
                       for at in range(begin + 1, end + 1))
            ]  # fmt: skip
            expected.append(max(within, default=begin + 1))
        found = padded.stops(columns, np.array(is_padded), np.array(budgets))
        assert found.tolist() == expected


def plain_cut(sizes: np.ndarray, stop: np.ndarray, most: int) -> list[range]:
    """Microbatches of at most `most`, each as long as it can be."""
    found, begin = [], 0
    while begin < len(sizes):
        end = begin + 1
        while end < min(len(sizes), stop[begin]) and (end + 1 - begin) * sizes[begin] <= most:
            end += 1
        found.append(range(begin, end))
        begin = end
    return found


@pytest.mark.parametrize("seed", range(8))
def test_microbatches_of_a_most_are_as_few_as_can_be(seed: int) -> None:
    sizes, stop = drawn(seed, 9)
    for most in range(int(sizes[0]), 9 * int(sizes[0]) + 1, 7):
        groups = plain_cut(sizes, stop, most)
        group_of = np.full(9, -1)
        assert padded.cut(sizes, stop, most, group_of) == len(groups)
        assert group_of.tolist() == [k for k, group in enumerate(groups) for _ in group]
        for limit in range(1, 10):
            expected = min(len(groups), limit + 1)
            assert padded.count_cut(sizes, stop, most, limit) == expected


def test_the_least_top_is_the_least() -> None:
    tops = set()
    for seed in range(12):
        sizes, stop = drawn(seed, 8)
        for groups in range(1, 9):
            holds = [
                top for top in range(int(sizes[0]), 8 * int(sizes[0]) + 1)
                if len(plain_cut(sizes, stop, top)) <= groups
            ]  # fmt: skip
            expected = holds[0] if holds else -1
            assert padded.least_top(sizes, stop, groups) == expected
            tops.add(expected)
    assert -1 in tops
    nothing = np.zeros(0, np.int64)
    assert padded.least_top(nothing, nothing, 3) == 0


def plain_far(sizes: np.ndarray, stop: np.ndarray, tops: tuple[int, int], ranks: int) -> np.ndarray:
    """How many samples some microbatches of each row hold at most, in every order of rows."""
    samples = len(sizes)

    def end(begin: int, top: int) -> int:
        if begin >= samples:
            return samples
        return min(int(stop[begin]), samples, begin + top // int(sizes[begin]))

    @cache
    def far(a: int, b: int) -> int:
        ways = [end(far(a - 1, b), tops[0])] if a else []
        ways += [end(far(a, b - 1), tops[1])] if b else []
        return max(ways, default=0)

    return np.array([[far(a, b) for b in range(ranks + 1)] for a in range(ranks + 1)])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_two_rows_reach_as_far_as_any_order_of_their_microbatches(ranks: int) -> None:
    answers = set()
    for seed in range(12):
        sizes, stop = drawn(seed, 10)
        draw = np.random.default_rng(seed)
        first, second = sorted(draw.integers(1, 240 // ranks, 2).tolist(), reverse=True)
        ends, far = np.empty((2, 11), np.int64), np.empty((ranks + 1, ranks + 1), np.int64)
        padded.fill_ends(sizes, stop, first, ends, 0)
        padded.fill_ends(sizes, stop, second, ends, 1)
        padded.fill_far(ranks, ends, far)
        holds = padded.holds(ranks, ends, np.empty(ranks + 1, np.int64))
        expected = plain_far(sizes, stop, (first, second), ranks)
        assert far.tolist() == expected.tolist()
        assert holds == (expected[-1, -1] == 10)
        answers.add(bool(holds))
    assert answers == {False, True}


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_tops_of_two_rows_are_the_least_and_cut_the_samples(ranks: int) -> None:
    lowered = 0
    for seed in range(3):
        sizes, stop = drawn(2 * seed, 8)
        top = padded.least_top(sizes, stop, 2 * ranks)
        pairs = [
            (one, two) for one in range(int(sizes[0]), 2 * top + 1) for two in range(1, one + 1)
            if plain_far(sizes, stop, (one, two), ranks)[-1, -1] == 8
        ]  # fmt: skip
        first, second = padded.best_tops(sizes, stop, ranks, top, top, 2 * top)
        assert plain_far(sizes, stop, (first, second), ranks)[-1, -1] == 8
        assert first + second == min(2 * top, *map(sum, pairs))
        lowered += first + second < 2 * top
        row_of = np.full(8, -1)
        padded.cut_in_two(sizes, stop, ranks, first, second, row_of)
        for row, most in ((0, first), (1, second)):
            held = sizes[row_of == row]
            assert len(plain_cut(held, np.full(len(held), len(held)), most)) <= ranks
    assert lowered


@pytest.mark.parametrize(
    ("sizes", "ranks", "tops"),
    [([2, 2, 1, 1, 1, 1, 1, 1], 1, (6, 4)), ([3, 3, 3, 2, 1, 1], 2, (6, 1))],
)
def test_two_tops_that_leave_no_room_are_found(
    sizes: list[int], ranks: int, tops: tuple[int, int]
) -> None:
    stop = np.full(len(sizes), len(sizes))
    top = padded.least_top(np.array(sizes), stop, 2 * ranks)
    for points in (7, 2 * top):
        assert padded.best_tops(np.array(sizes), stop, ranks, top, top, points) == tops


def test_rows_in_turns_hold_what_one_after_the_other_would_not() -> None:
    # Each row reaches far from where the other one's microbatch ends, and nowhere else.
    first = [3, 3, 3, 4, 5, 6, 9, 9, 9, 10, 10]
    second = [1, 2, 3, 6, 6, 6, 7, 8, 9, 10, 10]
    ends = np.array([first, second], np.int64)
    assert padded.holds(2, ends, np.empty(3, np.int64))
    assert not padded.holds(1, ends, np.empty(2, np.int64))


@pytest.mark.parametrize(
    ("group_of", "groups", "filled"),
    [
        # The largest of the row gives its smaller half, the smallest samples of it.
        ([0, 0, 0, 0, 0], 2, [0, 0, 0, 1, 1]),
        ([0, 1, 1, 1, 0], 4, [0, 1, 1, 3, 2]),
        # Nobody in the second row has two: one that can spare its smallest gives that.
        ([0, 0, 0, 1], 4, [0, 3, 2, 1]),
        # There are too few.
        ([0, 1], 4, [0, 1]),
    ],
)
def test_empty_microbatches_get_samples_that_others_can_spare(
    group_of: list[int], groups: int, filled: list[int]
) -> None:
    found = np.array(group_of)
    padded.fill_empty(found, groups, 2)
    assert found.tolist() == filled
