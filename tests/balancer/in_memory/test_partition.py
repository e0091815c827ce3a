"""`cp.partition`: each item once, within what was asked, and even."""

import contextlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from tests.balancer.in_memory.problems import (
    VERL,
    Problem,
    check_partition,
    draw_lengths,
    draw_problem,
)


def _check(seed: int) -> bool:
    """Check the problem of a seed; return whether it was refused, as only groups may be."""
    problem = draw_problem(seed)
    may_refuse = problem.options.get("keep_groups") == "together"
    may_refuse = may_refuse and problem.options["counts"] == "equal"
    with contextlib.ExitStack() as stack:
        if may_refuse:
            stack.enter_context(contextlib.suppress(ValueError))
        dealt = problem.partition()
        check_partition(problem, dealt)
        return False
    return True


def test_random_problems() -> None:
    refused = sum(map(_check, range(300)))
    assert 0 < refused < 30


@pytest.mark.long
@pytest.mark.parametrize("first", range(300, 10_300, 500))
def test_ten_thousand_random_problems(first: int) -> None:
    assert sum(map(_check, range(first, first + 500))) < 50


@pytest.mark.parametrize("kind", ["lognormal", "tail"])
@pytest.mark.parametrize("counts", ["equal", "free"])
@pytest.mark.parametrize("work", ["packed", VERL])
def test_work_is_near_its_bound(kind: str, counts: str, work: Any) -> None:
    bar = 1.002 if kind == "lognormal" else 1.005 if counts == "free" else 1.03
    for seed in range(12):
        rng = np.random.default_rng(seed)
        ranks = int(rng.integers(1, 65))
        items = int(rng.integers(32 * ranks, max(5001, 32 * ranks + 1)))
        problem = Problem(kind, draw_lengths(kind, items, rng), None, ranks, {"counts": counts})
        dealt = cp.partition(problem.tokens, ranks, counts=counts, work=work)  # type: ignore[arg-type]
        assert dealt.work.sum(axis=1).max() <= bar * dealt.bound, (seed, items, ranks)


def test_the_bound_is_the_mean_or_the_largest_item_with_what_its_rank_must_take() -> None:
    assert cp.partition([8, 1, 2, 3], 2, counts="free").bound == 8
    assert cp.partition([8, 1, 2, 3], 2).bound == 9
    assert cp.partition([4, 4, 3, 3], 2).bound == 7
    assert cp.partition([9, 9, 1, 1, 1, 1], 3, groups=list("aabbcc")).bound == 18


def test_faster_ranks_take_more() -> None:
    tokens = draw_lengths("lognormal", 4096, np.random.default_rng(0))
    speeds = np.array([1.0, 2.0, 3.0, 2.0])
    dealt = cp.partition(tokens, 4, counts="free", speeds=speeds)
    time = dealt.work.sum(axis=1) / speeds
    assert time.max() <= 1.001 * time.mean()
    assert dealt.imbalance == pytest.approx(time.max() / (tokens.sum() / speeds.sum()))


def test_results_come_back_in_the_items_order() -> None:
    tokens = draw_lengths("tail", 103, np.random.default_rng(0))
    dealt = cp.partition(tokens, 8, budgets=40_000)
    results = np.concatenate([tokens[rank] for rank in dealt.ranks])
    assert (results[dealt.inverse] == tokens).all()


def test_a_remainder_is_kept_refused_repeated_or_dropped() -> None:
    tokens = [50, 40, 30, 20, 10, 60, 70]
    assert sorted(len(rank) for rank in cp.partition(tokens, 3).ranks) == [2, 2, 3]
    with pytest.raises(ValueError, match=r"7 items are not a multiple of 3 ranks: leave 1 out"):
        cp.partition(tokens, 3, remainder="error")
    repeated = cp.partition(tokens, 3, remainder="repeat")
    assert repeated.repeated == (3, 4)
    assert [len(rank) for rank in repeated.ranks] == [3, 3, 3]
    assert sum(map(sum, repeated.weights)) == 7
    dropped = cp.partition(tokens, 3, remainder="drop")
    assert dropped.dropped == (6,)
    assert dropped.inverse[6] == -1
    assert [len(rank) for rank in dropped.ranks] == [2, 2, 2]


@pytest.mark.parametrize("scale", [2**21, 2**45, 0.001, 1e-9])
def test_work_of_any_size_is_dealt_alike(scale: float) -> None:
    weights = np.random.default_rng(0).integers(1, 2**16, 500)
    plain = cp.partition([1] * 500, 8, loads=weights)
    scaled = cp.partition([1] * 500, 8, loads=weights * scale)
    assert scaled.imbalance == pytest.approx(plain.imbalance, abs=1e-4)
    assert scaled.work.sum() == pytest.approx(float(weights.sum()) * scale)


def test_budgets_of_huge_and_of_broken_costs_are_kept() -> None:
    seconds = np.random.default_rng(0).random(500) * 30
    for unit in (1.0, 2.0**50):
        dealt = cp.partition({"seconds": seconds * unit}, 4, budgets={"seconds": 30.0 * unit})
        for rank in dealt.microbatches:
            assert all(seconds[cell].sum() <= 30 for cell in rank)


def test_numbers_of_numpy_are_numbers() -> None:
    tokens = np.array([3, 4, 5], dtype=np.uint64)
    dealt = cp.partition(tokens, 2, budgets=int(np.int64(9)))
    assert dealt.ranks == cp.partition([3, 4, 5], 2, budgets=np.int64(9)).ranks  # type: ignore[arg-type]


def test_few_items_leave_ranks_empty() -> None:
    dealt = cp.partition([5, 6], 4)
    assert dealt.ranks == [[0], [1], [], []]
    assert cp.partition([], 2).ranks == [[], []]
    assert cp.partition([], 2, budgets=5, min_microbatches=2).microbatches == [[[], []]] * 2
    assert cp.partition([5], 4, remainder="repeat").ranks == [[0]] * 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([3, -1], 2), {}, r"item 1: costs of tokens are -1, allowed are numbers from 0 to below"),
        (([3, float("nan")], 2), {}, "item 1: costs of tokens are nan"),
        (([3, 2**63], 2), {}, r"item 1: costs of tokens are 9\.22"),
        (([3, 2**70], 2), {}, "item 1: costs of tokens are 1180591620717411303424"),
        (([3, None], 2), {}, "item 1: costs of tokens are None"),
        (([3, "4"], 2), {}, "item 0: costs of tokens are '3'"),
        (([True, False], 2), {}, "item 0: costs of tokens are True"),
        ((None, 2), {}, r"costs of tokens have shape \(\), needed is \(items,\)"),
        (([[1, 2]], 2), {}, r"costs of tokens have shape \(1, 2\)"),
        (({}, 2), {}, "resources are 0 names"),
        (({"a": [1], "b": [1, 2]}, 2), {}, "costs of a are 1, but there are 2 items"),
        (([1, 2], 0), {}, "ranks is 0, allowed is a positive integer"),
        (([1, 2], 2.0), {}, "ranks is 2.0"),
        (([1, 9], 2), {"budgets": 8}, "item 1 has 9 tokens, more than a microbatch's budget 8"),
        (([1, 9], 2), {"budgets": 0}, "budget of tokens is 0"),
        (([1, 9], 2), {"budgets": {"token": 9}}, "did you mean 'tokens'"),
        (({"a": [1], "b": [1]}, 2), {"budgets": 8}, "give one by name, of a, b"),
        (([1, 2], 2), {"counts": "even"}, "counts is 'even'"),
        (([1, 2], 2), {"counts": "free", "remainder": "drop"}, "counts 'free' leave none"),
        (([1, 2], 2), {"multiple_of": 0}, "multiple_of is 0"),
        (([1, 2], 2), {"work": "tight"}, "work is 'tight'"),
        (([1, 2], 2), {"work": {"tiles": 3}}, "time_ns names tiles"),
        (([1, 2], 2), {"work": "padded", "loads": [1, 2]}, "leave work out"),
        (([1, 2], 2), {"work": "padded", "keep_order": True}, "keep_order cuts by sums"),
        (([1, 2], 2), {"loads": [1]}, "loads are 1, but there are 2 items"),
        (([1, 2], 2), {"groups": [1]}, "groups are 1, but there are 2 items"),
        (([1, 2], 2), {"speeds": [1]}, "needed are 2 numbers above 0, one a rank"),
        (([1, 2], 2), {"speeds": [1, 0]}, "speeds are"),
        (([1, 2, 3], 3), {"groups": [0, 0, 1]}, r"no deal of groups of 1 to 2 items \(item 0's"),
    ],
)  # fmt: skip
def test_bad_input_is_named(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cp.partition(*arguments, **options)


def test_torch_is_not_imported() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import counterpoise as cp\n"
        "print(cp.partition([900, 100, 500, 300, 400, 200], ranks=2).ranks)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[[0, 1, 5], [2, 3, 4]]\n", done.stderr
