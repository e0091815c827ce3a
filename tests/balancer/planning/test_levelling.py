"""Levelling: plans are no less even than a short greedy's, whatever ranks wait for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.baselines.step_greedy import greedy_rows, loads_of
from benchmarks.planning.bounds import least_rows, least_slowest
from benchmarks.planning.image_sizes import read_image_sizes
from counterpoise.balancer.planning.partition.level import level
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.loads import group_loads
from counterpoise.balancer.planning.problem.shuffle import permutation

WORK = np.array([307, 1])


def read(data: Path, name: str, count: int, draw: int = 0) -> np.ndarray:
    path = data / "metadata" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no {path.name} here")
    with np.load(path) as arrays:
        costs = np.stack([arrays["tiles"], arrays["tokens"]], axis=1).astype(np.int64)
    return np.ascontiguousarray(costs[permutation(len(costs), 0, draw)[:count]])


def plan(costs: np.ndarray, ranks: int, accumulate: int, **more: Any) -> np.ndarray:
    """Plan one step without budgets; the work (ranks, accumulate, 2) of its microbatches."""
    given = {"resources": ("tiles", "tokens"), "budgets": (None, None), **more}
    config = PlanConfig(ranks, len(costs), accumulate, **given)
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    each = [[costs[list(m.ordinals), :2].sum(axis=0) for m in rank] for rank in batch.ranks]
    return np.array(each) * WORK


def efficiency(work: np.ndarray) -> float:
    return float(work.sum() / len(work) / work.max(axis=0).sum())


def efficiency_once(work: np.ndarray) -> float:
    return float(work.sum() / len(work) / work.sum(axis=(1, 2)).max())


def bound(costs: np.ndarray, ranks: int, accumulate: int) -> float:
    least = sum(least_rows(costs[:, k], ranks, accumulate) * int(WORK[k]) for k in range(2))
    return float((costs @ WORK).sum() / ranks / least)


@pytest.mark.parametrize("name", ["calibrated_1200k", "skewed_1200k", "omnibal_pairs"])
@pytest.mark.parametrize(("ranks", "accumulate", "least"), [(8, 4, 0.975), (8, 16, 0.99)])
def test_a_step_is_as_even_as_promised_and_no_greedy_is_better(
    data: Path, name: str, ranks: int, accumulate: int, least: float
) -> None:
    found = []
    for draw in range(3):
        costs = read(data, name, 8 * ranks * accumulate, draw)
        ours = efficiency(plan(costs, ranks, accumulate))
        short = loads_of(costs, greedy_rows(costs, ranks, accumulate), ranks, accumulate)
        assert ours >= efficiency(short * WORK)
        found.append(ours - min(least, bound(costs, ranks, accumulate) - 0.005))
    assert np.mean(found) >= 0


@pytest.mark.parametrize(
    ("ranks", "accumulate", "least"), [(8, 16, 0.99), (128, 4, 0.975), (128, 16, 0.99)]
)
def test_steps_with_giants_are_as_even_as_promised_or_as_can_be(
    data: Path, ranks: int, accumulate: int, least: float
) -> None:
    path = data / "metadata" / "samples.npz"
    if not path.is_file():
        pytest.skip("no samples.npz here")
    every = read_image_sizes(path)[0].costs
    for draw in range(2):
        order = permutation(len(every), 0, draw)[: 8 * ranks * accumulate]
        costs = np.ascontiguousarray(every[order])
        found = efficiency(plan(costs, ranks, accumulate))
        assert found >= min(least, bound(costs, ranks, accumulate) - 0.005)


def test_once_a_step_ranks_wait_for_almost_nothing(data: Path) -> None:
    costs = read(data, "calibrated_1200k", 512 * 4 * 8)
    assert efficiency_once(plan(costs, 512, 4, waits="step")) >= 0.998
    assert efficiency(plan(costs, 512, 4)) >= 0.975


@given(seed=st.integers(0, 99), ranks=st.integers(2, 6), accumulate=st.integers(1, 4))
@settings(max_examples=25)
def test_a_plan_for_once_a_step_has_evener_sums(seed: int, ranks: int, accumulate: int) -> None:
    rng = np.random.default_rng(seed)
    size = ranks * accumulate * 8
    costs = np.stack([rng.integers(0, 9, size), rng.integers(20, 4000, size)], axis=1)
    once = efficiency_once(plan(costs, ranks, accumulate, waits="step"))
    assert once >= efficiency_once(plan(costs, ranks, accumulate)) - 0.002


@given(
    seed=st.integers(0, 99), ranks=st.integers(2, 5), accumulate=st.integers(1, 3),
    waits=st.sampled_from(["microbatch", "step"]), steps=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=40)
def test_levelling_makes_nothing_worse_and_keeps_budgets(
    seed: int, ranks: int, accumulate: int, waits: Any, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    groups = steps * ranks * accumulate
    costs = rng.integers(0, 50, (groups * 5, 3))
    group_of = rng.permutation(groups * 5) % groups
    group_of[rng.integers(0, groups * 5, 4)] = -1
    before = group_loads(costs, group_of, groups)
    budgets = (int(before[:, 0].max()), int(before[:, 1].max()), None)
    config = PlanConfig(ranks, 9, accumulate, ("a", "b", "c"), budgets, waits=waits)
    cells = rng.permutation(groups).reshape(steps, ranks, accumulate)
    found = level(config, costs, group_of, cells)
    after = group_loads(costs, found, groups)
    assert ((found < 0) == (group_of < 0)).all()
    assert (np.bincount(found[found >= 0], minlength=groups) > 0).all()
    assert (after[:, :2].max(axis=0) <= budgets[:2]).all()
    for step in cells:
        # A step keeps its samples, and no row of a step waits longer.
        mine = np.isin(group_of, step)
        assert np.isin(found[mine], step).all()
        if waits == "microbatch":
            assert (after[step].max(axis=0) <= before[step].max(axis=0)).all()


def test_label_tokens_are_no_work() -> None:
    rng = np.random.default_rng(1)
    costs = np.stack([rng.integers(0, 9, 256), rng.integers(20, 4000, 256)], axis=1)
    labelled = np.column_stack([costs, rng.integers(1, 900, 256)])
    names = ("tiles", "tokens", "label_tokens")
    known = plan(labelled, 8, 4, resources=names, budgets=(None, None, None))
    assert np.array_equal(known, plan(costs, 8, 4))
    budgeted = plan(labelled, 8, 4, resources=names, budgets=(None, None, 10**6))
    assert not np.array_equal(budgeted, plan(costs, 8, 4))


def test_a_rank_with_a_giant_gives_all_else_away_where_ranks_wait_once() -> None:
    rng = np.random.default_rng(4)
    costs = np.stack([rng.integers(1, 9, 128), rng.integers(200, 3000, 128)], axis=1)
    costs[7] = (240, 100_000)  # more than a rank's share
    found = efficiency_once(plan(costs, 4, 4, waits="step"))
    best = float((costs @ WORK).sum() / 4 / least_slowest(costs @ WORK, 4))
    assert best < 0.9
    assert found >= best - 0.03
