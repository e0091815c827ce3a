"""Costs and metrics: whole nanoseconds from resources, and figures one can check by hand."""

import json

import numpy as np
import pytest

from benchmarks.planning.epochs import dist_ratio
from counterpoise.balancer.planning.ordering.by_config import make_evaluator, pass_times
from counterpoise.balancer.planning.problem import metrics
from counterpoise.balancer.planning.problem.loads import UNLIMITED, common_unit, scale_costs
from counterpoise.balancer.planning.problem.pipeline_costs import (
    PassEntry,
    PipelineCosts,
    parse_pipeline,
)

POINTS = ((0, 0), (10, 100), (20, 400))


def test_a_model_gives_the_times_of_stages() -> None:
    stages = (PassEntry(5, {"tiles": 3000}), PassEntry(points={"tokens": POINTS}))
    costs = PipelineCosts("1f1b", (0, 1), {"F": stages, "B": (PassEntry(7),)})
    amounts = {"tiles": np.array([1, 2]), "tokens": np.array([5, 30])}
    assert pass_times(costs, "F", amounts).tolist() == [[8, 11], [50, 700]]
    assert pass_times(costs, "B", amounts).tolist() == [[7, 7], [7, 7]]
    assert make_evaluator(costs, amounts).costs.tolist() == [[8, 11], [50, 700], [7, 7], [7, 7]]


def test_split_backward_is_summed() -> None:
    costs = PipelineCosts(
        "1f1b", (0,), {k: (PassEntry(n),) for k, n in zip("FIW", (1, 3, 4), strict=True)}
    )
    assert make_evaluator(costs, {"tokens": np.array([1])}).costs.tolist() == [[1], [7]]


@pytest.mark.parametrize(("kind", "count"), [("F", 2), ("W", 3), ("S", 3)])
def test_a_list_that_leaves_out_a_stage_is_refused(kind: str, count: int) -> None:
    passes = {"F": [{}], kind: [{}] * count}
    text = json.dumps({"schedule": "interleaved", "placement": [0, 1, 0, 1], "passes": passes})
    with pytest.raises(ValueError, match=f"{kind}: got {count} costs; give all 4 stages', or one"):
        parse_pipeline(text)


def test_metrics_of_even_and_empty_plans() -> None:
    even = np.full((3, 4), 7)
    assert dist_ratio(even) == 0
    assert dist_ratio(np.array([[4, 2], [3, 3]])) == 0.125
    assert metrics.efficiency(even, even) == 1
    assert dist_ratio(np.zeros((2, 2), dtype=np.int64)) == 0
    assert metrics.efficiency(np.zeros((1, 2), dtype=int), np.zeros((1, 2), dtype=int)) == 1


def test_scaled_costs_never_hide_a_budget() -> None:
    rng = np.random.default_rng(0)
    for top in (10, 10**6, 10**12):
        costs = rng.integers(0, top, (50, 2))
        budgets = np.array([2 * top, UNLIMITED])
        small, limits = scale_costs(costs, budgets, 20)
        chosen = rng.integers(0, 2, (500, 50)).astype(np.int64)
        fits = (chosen @ small <= limits).all(axis=1)
        assert ((chosen @ costs)[fits] <= budgets).all()
        assert small.max() < 2**28
        assert common_unit(costs, 7).min() >= 0
