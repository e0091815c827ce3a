"""Sums are planned by times where time_ns is given: attention's square counts, budgets hold."""

from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.work import timed_config, timed_costs

TIMES = (("attention_pairs", 1), ("tiles", 5000), ("tokens", 100))
RANKS, ROWS, SIZE = 4, 2, 96


def _costs(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tokens = rng.lognormal(5.5, 0.9, SIZE).clip(8, 2000).astype(np.int64)
    return np.stack([rng.integers(0, 13, SIZE), tokens], axis=1)


def _loads(costs: np.ndarray, budgets: tuple[Any, Any] = (None, None), **more: Any) -> np.ndarray:
    """Return tiles, tokens and squares (ranks, rows, 3) of the microbatches of a step."""
    config = PlanConfig(RANKS, SIZE, ROWS, ("tiles", "tokens"), budgets, **more)
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    assert sorted(n for rank in batch.ranks for m in rank for n in m.ordinals) == list(range(SIZE))
    each = np.column_stack([costs, costs[:, 1] ** 2])
    return np.array([[each[list(m.ordinals)].sum(0) for m in rank] for rank in batch.ranks])


def _llm(loads: np.ndarray) -> np.ndarray:
    return loads[..., 1] * 100 + loads[..., 2]


def test_rows_take_less_time_with_the_square_of_attention() -> None:
    costs = [_costs(seed) for seed in range(8)]

    def time(**more: Any) -> int:
        found = [_loads(each, **more) for each in costs]
        encoder = sum(int(each[..., 0].max(axis=0).sum()) * 5000 for each in found)
        return encoder + sum(int(_llm(each).max(axis=0).sum()) for each in found)

    assert time(time_ns=TIMES) < 0.9 * time()


def test_once_a_step_the_ranks_sums_of_time_are_even() -> None:
    costs = _costs(3)

    def spread(loads: np.ndarray) -> float:
        sums = (_llm(loads) + 5000 * loads[..., 0]).sum(axis=1)
        return float(sums.max() / sums.mean())

    plain, timed = (_loads(costs, waits="step", time_ns=times) for times in ((), TIMES))
    assert spread(timed) < 1.001
    assert spread(plain) > 1.02


@pytest.mark.parametrize("seed", range(4))
def test_budgets_limit_costs_and_not_times(seed: int) -> None:
    costs = _costs(seed)
    budgets = 150, int(max(costs[:, 1].max(), costs[:, 1].sum() / 6))
    assert (_loads(costs, budgets, time_ns=TIMES)[..., :2] <= budgets).all()


def test_a_resource_without_a_time_is_no_work() -> None:
    config = PlanConfig(1, 8, 1, ("tiles", "tokens"), (None, None), time_ns=(("tokens", 2),))
    assert timed_config(config).resources == ("tokens ns",)
    assert timed_costs(config, np.array([[9, 5], [1, 7]])).tolist() == [[10], [14]]


def test_equal_counts_stay_equal_with_times() -> None:
    config = PlanConfig(
        RANKS, SIZE, ROWS, ("tiles", "tokens"), (None, None), counts="equal", time_ns=TIMES
    )
    (batch,) = make_planner(config).plan(Window(0, 0, 0, _costs(1), last=True)).batches
    counts = {len(m.ordinals) for rank in batch.ranks for m in rank}
    assert counts == {SIZE // (RANKS * ROWS)}
