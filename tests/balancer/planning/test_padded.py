"""Padded work: like sizes in one microbatch, like microbatches in one row; free or equal counts."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from counterpoise.balancer import Balance, Work
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig, Window
from counterpoise.balancer.planning.problem.work import padded_loads, sample_times
from tests.flat_options import flat_balance


def config(ranks: int, accumulate: Any, samples: int, **more: Any) -> PlanConfig:
    resources = more.pop("resources", ("tokens",))
    budgets = more.pop("budgets", (None,) * len(resources))
    given = {"padded": ("tokens",), **more}
    return PlanConfig(ranks, samples, accumulate, resources, budgets, **given)


def plan(costs: np.ndarray, config: PlanConfig) -> GlobalBatch:
    window = Window(0, 0, 0, costs.reshape(len(costs), -1), last=True)
    (batch,) = make_planner(config).plan(window).batches
    return batch


def members(batch: GlobalBatch) -> list[list[list[int]]]:
    """The samples of each microbatch, row by row: those side by side on the ranks."""
    return [[list(m.ordinals) for m in row] for row in zip(*batch.ranks, strict=True)]


def time_of(costs: np.ndarray, rows: list[list[list[int]]], square: int = 0) -> int:
    """The sum of the rows' tops: count x longest (and longest squared) of one resource."""
    tops = [
        max((len(m) * int(costs[m].max()) * (1 + square * int(costs[m].max())) if m else 0)
            for m in row)
        for row in rows
    ]  # fmt: skip
    return sum(tops)


def in_order(costs: np.ndarray, ranks: int, rows: int) -> list[list[list[int]]]:
    """What a loop does that does not plan: the samples as they come, as many in each."""
    chunks = np.array_split(np.arange(len(costs)), ranks * rows)
    return [[chunk.tolist() for chunk in chunks[k * ranks :][:ranks]] for k in range(rows)]


LENGTHS = st.integers(2, 40).flatmap(
    lambda n: arrays.arrays(np.int64, n, elements=st.integers(0, 2000))
)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["equal", "free"]),
       st.sampled_from([0, 3]), st.sampled_from(["microbatch", "step"]))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_each_sample_comes_once_and_never_costs_more_than_in_order(
    lengths: np.ndarray, ranks: int, rows: int, counts: Any, square: int, waits: Any
) -> None:
    pairs = (("attention_pairs", square),) if square else ()
    chosen = config(
        ranks, rows, len(lengths), counts=counts, waits=waits, time_ns=(*pairs, ("tokens", 1))
    )
    batch = plan(lengths, chosen)
    assert batch == plan(lengths, chosen)
    found = members(batch)
    each = list(itertools.chain(*found))
    assert sorted(itertools.chain(*each)) == list(range(len(lengths)))
    assert len(each) == ranks * rows
    if len(lengths) >= ranks * rows:
        assert min(map(len, each)) > 0
    if counts == "equal":
        assert max(map(len, each)) - min(map(len, each)) <= 1
    if waits == "microbatch":
        reference = in_order(lengths, ranks, rows)
        assert time_of(lengths, found, square) <= time_of(lengths, reference, square)


def best_time(lengths: np.ndarray, ranks: int, rows: int) -> int:
    """The least possible time, by trying every assignment of samples to microbatches."""
    places = range(ranks * rows)
    best = int(lengths.max()) * len(lengths) * rows
    for cells in itertools.product(places, repeat=len(lengths)):
        held = [[k for k, cell in enumerate(cells) if cell == place] for place in places]
        found = [held[row * ranks :][:ranks] for row in range(rows)]
        best = min(best, time_of(lengths, found))
    return best


@pytest.mark.parametrize(("ranks", "rows"), [(2, 1), (3, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("steps", [3, pytest.param(6, marks=pytest.mark.long)])
def test_free_counts_find_the_least_time_of_small_steps(ranks: int, rows: int, steps: int) -> None:
    chance = np.random.default_rng(ranks * 10 + rows)
    for _ in range(steps):
        lengths = np.maximum(1, chance.lognormal(3, 1, 7).astype(np.int64))
        found = members(plan(lengths, config(ranks, rows, len(lengths), counts="free")))
        best = best_time(lengths, ranks, rows)
        # without a microbatch that may stay empty the best can be a little out of reach
        assert best <= time_of(lengths, found) <= best * 1.02 + 1


@given(
    arrays.arrays(np.int64, (24, 2), elements=st.integers(0, 100)),
    st.integers(1, 3), st.sampled_from(["equal", "free"]), st.integers(100, 500),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_budgets_are_of_count_times_longest_and_of_sums(
    costs: np.ndarray, ranks: int, counts: Any, most: int
) -> None:
    chosen = config(
        ranks, "auto", 24, resources=("tokens", "tiles"), budgets=(most, most), counts=counts,
        oversize="refuse" if counts == "equal" else "alone",
    )  # fmt: skip
    each = list(itertools.chain(*members(plan(costs, chosen))))
    group_of = np.empty(24, dtype=np.int64)
    for number, held in enumerate(each):
        group_of[held] = number
    loads = padded_loads(costs, group_of, len(each), (0,))
    assert loads.max() <= most
    assert sorted(itertools.chain(*each)) == list(range(24))
    if counts == "equal":
        sizes = list(map(len, each))
        assert max(sizes) - min(sizes) <= 1


def test_a_step_that_budgets_cannot_hold_names_the_least_accumulate() -> None:
    lengths = np.full(16, 10)
    with pytest.raises(ValueError, match="smallest accumulate found is 4"):
        plan(lengths, config(2, 2, 16, budgets=(20,), counts="equal", oversize="refuse"))
    assert len(plan(lengths, config(2, 4, 16, budgets=(20,))).ranks[0]) == 4


def test_a_sample_over_budget_is_alone_beside_microbatches_like_it() -> None:
    lengths = np.array([500] + [10] * 31)
    batch = plan(lengths, config(2, 3, 32, budgets=(100,)))
    rows = members(batch)
    (own,) = [row for row in rows if [0] in row]
    assert [0] in own


def test_tiles_are_evened_out_beside_padded_tokens() -> None:
    chance = np.random.default_rng(3)
    costs = np.stack([chance.lognormal(5, 0.8, 256), chance.integers(0, 12, 256)], axis=1)
    costs = costs.astype(np.int64)
    times = (("tiles", 300), ("tokens", 1))
    for counts in ("equal", "free"):
        chosen = config(8, 4, 256, resources=("tokens", "tiles"), counts=counts, time_ns=times)
        found = members(plan(costs, chosen))
        tiles = np.array([[costs[m, 1].sum() for m in row] for row in found]) * 300
        alone = config(8, 4, 256, counts=counts)
        by_length = members(plan(costs[:, 0], alone))
        before = np.array([[costs[m, 1].sum() for m in row] for row in by_length]) * 300
        assert (
            time_of(costs[:, 0], found) + tiles.max(axis=1).sum()
            < (time_of(costs[:, 0], by_length) + before.max(axis=1).sum()) * 0.95
        )


def test_a_window_may_hold_many_steps_of_as_many_samples() -> None:
    lengths = np.random.default_rng(5).lognormal(5, 1, 4096).astype(np.int64)[:, None]
    chosen = config(4, 1, 32, mode="window", counts="equal")
    planner = make_planner(chosen)
    planned = planner.plan(Window(0, 0, 0, lengths[: planner.window_samples], last=True))
    flat = [m.ordinals for batch in planned.batches for rank in batch.ranks for m in rank]
    assert {len(each) for each in flat} == {8}
    assert len(set(itertools.chain(*flat))) == planned.consumed == len(planned.batches) * 32
    reference = sum(time_of(lengths[k : k + 32, 0], in_order(lengths[:32], 4, 1))
                    for k in range(0, planned.consumed, 32))  # fmt: skip
    found = sum(time_of(lengths[:, 0], members(batch)) for batch in planned.batches)
    assert found < 0.5 * reference


def test_equal_counts_also_where_work_adds_up() -> None:
    costs = np.random.default_rng(6).lognormal(5, 1, 256).astype(np.int64)
    chosen = config(8, 4, 256, padded=(), counts="equal")
    rows = members(plan(costs, chosen))
    assert {len(m) for row in rows for m in row} == {8}
    sums = np.array([[costs[m].sum() for m in row] for row in rows])
    before = np.array([[costs[m].sum() for m in row] for row in in_order(costs, 8, 4)])
    assert sums.max(axis=1).sum() < 0.7 * before.max(axis=1).sum()


def test_times_are_exact_where_they_fit_and_never_overflow() -> None:
    chosen = config(1, 1, 2, time_ns=(("attention_pairs", 2), ("tokens", 3)))
    assert sample_times(chosen, np.array([[5], [7]])).padded.tolist() == [65, 119]
    huge = sample_times(chosen, np.array([[2**40], [2**39]])).padded.tolist()
    assert 0 < huge[1] < huge[0] < 2**56


def test_the_configuration_says_it() -> None:
    balance = Balance(work=Work("padded", {"tokens": 4, "attention_pairs": 1}), counts="free")
    resolved = PlanConfig.from_balance(
        balance, ranks=2, resources=("tiles", "tokens", "label_tokens"), samples_per_step=8
    )
    assert resolved.padded == ("tokens",)
    assert resolved.time_ns == (("attention_pairs", 1), ("tokens", 4))


@pytest.mark.parametrize(("options", "work"), [
    ({}, "packed"), ({"layout": "padded"}, "padded"), ({"layout": "packed"}, "packed"),
    ({"layout": "padded", "work": "packed"}, "packed"),
    ({"layout": "padded", "grouping": "isf"}, "packed"),
    ({"layout": "padded", "mode": "epoch", "budgets": {"tokens": 9}}, "packed"),
    ({"layout": "padded", "mode": "window"}, "padded"), ({"work": "padded"}, "padded"),
])  # fmt: skip
def test_a_padded_layout_is_planned_as_padded_work(options: dict[str, Any], work: str) -> None:
    balance = flat_balance(**options)
    assert balance.resolved_work == work
    resolved = PlanConfig.from_balance(
        balance, ranks=1, resources=("tiles", "tokens"), samples_per_step=8
    )
    assert resolved.padded == (("tokens",) if work == "padded" else ())


def test_a_window_whose_budgets_are_too_tight_for_a_step_still_has_a_sample() -> None:
    chosen = config(1, 1, 2, mode="window", budgets=(3,))
    planned = make_planner(chosen).plan(Window(0, 0, 0, np.array([[3], [3]]), last=True))
    assert planned.consumed == 1
    assert [m.ordinals for b in planned.batches for rank in b.ranks for m in rank] == [(0,)]
