"""The modes of the planner over whole epochs, with tame and hostile costs."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig, Window
from counterpoise.balancer.planning.problem.options import NAMES

BASE = PlanConfig(
    ranks=3, samples_per_step=40, accumulate="auto", resources=("tiles", "tokens"),
    budgets=(9, 4096), accumulate_from=4,
)  # fmt: skip


def costs_of(samples: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, 6, samples), rng.integers(20, 2000, samples)], axis=1)


def epoch(
    config: PlanConfig, costs: np.ndarray, start: int = 0, step: int = 0
) -> tuple[list[GlobalBatch], list[tuple[int, int]]]:
    """All steps of an epoch from a window's start, and where the windows start."""
    planner, batches, starts = make_planner(config), list[GlobalBatch](), list[tuple[int, int]]()
    while start < len(costs):
        starts.append((start, step))
        shown = costs[start : start + planner.window_samples]
        last = start + len(shown) >= len(costs)
        planned = planner.plan(Window(2, step, start, shown, last))
        assert planned.consumed > 0
        batches += planned.batches
        start += planned.consumed
        step += len(planned.batches)
    return batches, starts


def check(config: PlanConfig, costs: np.ndarray, batches: list[GlobalBatch]) -> None:
    seen = Counter(o for b in batches for rank in b.ranks for m in rank for o in m.ordinals)
    assert seen == Counter(range(len(costs)))
    assert [batch.step for batch in batches] == list(range(len(batches)))
    for batch in batches:
        assert len(batch.ranks) == config.ranks
        assert len({len(rank) for rank in batch.ranks}) == 1
        for microbatch in (m for rank in batch.ranks for m in rank):
            load = costs[list(microbatch.ordinals)].sum(axis=0)
            fits = all(b is None or x <= b for x, b in zip(load, config.budgets, strict=True))
            assert fits or len(microbatch.ordinals) == 1


@given(
    samples=st.integers(1, 700),
    ranks=st.integers(1, 7),
    mode=st.sampled_from(["exact", "window", "epoch"]),
    grouping=st.sampled_from(["balanced", "isf"]),
    partition=st.sampled_from(NAMES["partition"]),
)
@settings(max_examples=60, deadline=None)
def test_an_epoch_holds_each_sample_once(
    samples: int, ranks: int, mode: Any, grouping: Any, partition: Any
) -> None:
    config = replace(BASE, ranks=ranks, mode=mode, grouping=grouping, partition=partition)
    costs = costs_of(samples, samples)
    check(config, costs, epoch(config, costs)[0])


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
@pytest.mark.parametrize(
    "costs",
    [
        np.zeros((50, 2), dtype=np.int64), np.ones((50, 2), dtype=np.int64),
        np.full((50, 2), 10**12), np.r_[np.zeros((49, 2), dtype=np.int64), [[10**12, 10**12]]],
        np.array([[3, 100]]), np.array([[9, 4096]] * 13),
    ],
    ids=["zeros", "equal", "all giant", "one giant", "one sample", "all full"],
)  # fmt: skip
def test_extreme_costs_are_planned(mode: Any, costs: np.ndarray) -> None:
    config = replace(BASE, mode=mode)
    check(config, costs, epoch(config, costs)[0])


@pytest.mark.parametrize("mode", ["exact", "window"])
def test_ten_resources_of_10_to_the_12_are_planned(mode: Any) -> None:
    names = tuple(f"r{k}" for k in range(10))
    budgets = (3 * 10**12, *[None] * 4, *[4 * 10**12] * 5)
    config = replace(BASE, resources=names, budgets=budgets, mode=mode)
    costs = np.random.default_rng(0).integers(0, 10**12, (90, 10))
    check(config, costs, epoch(config, costs)[0])


@pytest.mark.parametrize("mode", ["exact", "window"])
def test_a_resume_at_any_window_plans_the_same(mode: Any) -> None:
    config, costs = replace(BASE, mode=mode), costs_of(9_000)
    batches, starts = epoch(config, costs)
    assert len(starts) > 1
    for start, step in starts[:: max(1, len(starts) // 2)]:
        assert epoch(config, costs, start, step)[0] == batches[step:]


def test_exact_steps_hold_exactly_their_samples() -> None:
    costs = costs_of(400)
    for batch in epoch(BASE, costs)[0]:
        held = sorted(o for rank in batch.ranks for m in rank for o in m.ordinals)
        assert held == list(range(40 * batch.step, 40 * batch.step + 40))


def test_window_mode_plans_four_steps_and_4096_samples_together() -> None:
    config = replace(BASE, mode="window")
    planner = make_planner(config)
    costs = costs_of(planner.window_samples)
    planned = planner.plan(Window(0, 0, 0, costs, last=False))
    assert planned.consumed >= 4096
    assert len(planned.batches) >= 4
    assert all(len(rank) == 4 for batch in planned.batches for rank in batch.ranks)


def samples_of(batch: GlobalBatch) -> int:
    return sum(len(m.ordinals) for rank in batch.ranks for m in rank)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("asked", [128, 100])
def test_a_window_keeps_the_samples_per_step_where_budgets_are_loose(
    ranks: int, asked: int
) -> None:
    config = replace(
        BASE, mode="window", ranks=ranks, samples_per_step=asked, budgets=(10**6, 10**9)
    )
    costs = costs_of(12_000)
    batches, starts = epoch(config, costs)
    check(config, costs, batches)
    held = [samples_of(batch) for batch in batches]
    # Windows are cut into as many steps as they hold, of even loads: samples vary a little.
    assert len(batches) == -(-12_000 // asked)
    assert np.mean(held[:-1]) == pytest.approx(asked, rel=0.01)
    assert max(held) < 1.6 * asked
    for start, step in starts:
        assert start == step * asked


def test_a_window_of_equal_counts_needs_no_budgets_and_evens_out_single_microbatches() -> None:
    config = replace(BASE, mode="window", counts="equal", accumulate=1, budgets=(None, None))
    costs = costs_of(40 * 3 * 4)
    batches, _ = epoch(replace(config, samples_per_step=24), costs)
    assert Counter(len(m.ordinals) for b in batches for r in b.ranks for m in r) == {8: 60}
    assert {o for b in batches for r in b.ranks for m in r for o in m.ordinals} == set(range(480))
    tokens = [[costs[list(rank[0].ordinals), 1].sum() for rank in b.ranks] for b in batches]
    in_order = costs[:, 1].reshape(-1, 3, 8).sum(axis=2)
    assert np.max(tokens, axis=1).sum() / np.mean(tokens, axis=1).sum() < 1.03
    assert in_order.max(axis=1).sum() / in_order.mean(axis=1).sum() > 1.1


def test_full_microbatches_decide_where_budgets_hold_about_what_was_asked_for() -> None:
    config, costs = replace(BASE, mode="window", ranks=4, accumulate_from=8), costs_of(9000)
    whole = epoch(replace(config, samples_per_step=500), costs)[0][:-1]
    full = round(float(np.mean([samples_of(batch) for batch in whole])))
    for asked in (full + full // 20, full, full - full // 50):
        again = epoch(replace(config, samples_per_step=asked), costs)[0][:-1]
        assert np.mean([samples_of(batch) for batch in again]) == pytest.approx(full, rel=0.03)
    fewer = epoch(replace(config, samples_per_step=full // 2), costs)[0][:-1]
    assert np.mean([samples_of(batch) for batch in fewer]) == pytest.approx(full / 2, rel=0.02)


def test_the_partial_last_step_is_dropped_or_padded_in_every_mode() -> None:
    costs = costs_of(4130)
    for mode in ("exact", "window", "epoch"):
        dropped = epoch(replace(BASE, mode=mode, drop_last=True), costs)[0]
        padded = epoch(replace(BASE, mode=mode), costs)[0]
        assert len(padded) == len(dropped) + 1
        assert padded[:-1] == dropped


@pytest.mark.parametrize("ranks", [3, 5, 7])
def test_a_dropped_step_of_an_epoch_may_hold_its_last_group(ranks: int) -> None:
    config = replace(BASE, mode="epoch", ranks=ranks, accumulate_from=3)
    for count in range(50, 120, 5):
        costs = costs_of(count)
        dropped = epoch(replace(config, drop_last=True), costs)[0]
        padded = epoch(config, costs)[0]
        assert dropped in (padded, padded[:-1])


def test_refused_samples_are_in_no_step() -> None:
    costs = costs_of(4500)
    costs[[5, 4000]] = (10, 1)
    for mode in ("exact", "window", "epoch"):
        batches, _ = epoch(replace(BASE, mode=mode, oversize="refuse"), costs)
        held = {o for b in batches for rank in b.ranks for m in rank for o in m.ordinals}
        assert held == set(range(4500)) - {5, 4000}


def test_ranks_share_the_load_over_the_epoch() -> None:
    config, costs = replace(BASE, mode="window", ranks=4, accumulate_from=8), costs_of(8000)
    batches, _ = epoch(config, costs)
    sums = np.zeros((4, 2))
    for batch in batches[:-1]:
        for rank, microbatches in enumerate(batch.ranks):
            for microbatch in microbatches:
                sums[rank] += costs[list(microbatch.ordinals)].sum(axis=0)
    assert (np.abs(sums / sums.mean(axis=0) - 1) < 0.01).all()
