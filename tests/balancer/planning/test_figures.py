"""The planning figures on the project's metadata; skipped where the data is not there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.planning.epochs import dist_ratio
from counterpoise.balancer.planning.grouping.groups import members
from counterpoise.balancer.planning.grouping.isf import isf
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.loads import budget_array, group_loads, least_groups
from counterpoise.balancer.planning.problem.metrics import efficiency
from counterpoise.balancer.planning.problem.shuffle import permutation

BUDGETS = {"calibrated_1200k": (9, 4096), "calibrated_665k": (9, 4096), "skewed_1200k": (14, 5120)}


def read(data: Path, name: str) -> np.ndarray:
    path = data / "metadata" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no {path.name} here")
    with np.load(path) as arrays:
        return np.stack([arrays["tiles"], arrays["tokens"]], axis=1).astype(np.int64)


def test_isf_is_as_uneven_as_the_paper_says(data: Path) -> None:
    costs = read(data, "calibrated_1200k")
    found = isf(costs, (9, 4096), flush=False)
    loads = group_loads(costs, found.group_of, found.groups)
    for ranks in (8, 32, 128, 512):
        rows = permutation(len(loads), 1, 0)[: len(loads) // ranks * ranks].reshape(-1, ranks)
        assert dist_ratio(loads[rows][..., 0]) <= 0.04
        assert 0.12 <= dist_ratio(loads[rows][..., 1]) <= 0.15


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize(("mode", "least"), [("window", 0.98), ("exact", 0.98)])
def test_steps_of_sixteen_are_even(data: Path, name: str, mode: Any, least: float) -> None:
    costs, budgets = read(data, name), BUDGETS[name]
    costs = costs[permutation(len(costs), 0, 0)[:60_000]]
    bound = least_groups(costs, budget_array(budgets))
    size = int(0.94 * 32 * 16 * len(costs) / bound)
    accumulate: Any = {"window": 16, "exact": "auto"}[mode]
    config = PlanConfig(
        ranks=32, samples_per_step=size, accumulate=accumulate,
        accumulate_from=16 if mode == "exact" else 1,
        resources=("tiles", "tokens"), budgets=budgets, mode=mode,
    )  # fmt: skip
    planner, start, rows = make_planner(config), 0, []
    used, groups = 0, 0
    while len(costs) - start >= planner.window_samples:
        shown = costs[start : start + planner.window_samples]
        planned = planner.plan(Window(0, 0, start, shown, last=False))
        for batch in planned.batches:
            side = [[costs[list(m.ordinals)].sum(axis=0) for m in rank] for rank in batch.ranks]
            rows.append(np.array(side).transpose(1, 0, 2))
            groups += rows[-1].shape[0] * 32
        start += planned.consumed
        used = start
    loads = np.concatenate(rows)
    assert (loads <= budgets).all()
    assert efficiency(loads[..., 0] * 307, loads[..., 1]) >= least
    if mode == "window":
        assert dist_ratio(loads[..., 0]) <= 0.02
        assert dist_ratio(loads[..., 1]) <= 0.02
        # steps differ in size, and have what was asked for on average
        assert used * 16 * 32 / groups == pytest.approx(size, rel=0.01)


def test_isf_groups_hold_about_as_many_samples_as_the_paper_says(data: Path) -> None:
    costs = read(data, "calibrated_1200k")
    found = isf(costs, (9, 4096), flush=False)
    mean = np.mean([len(group) for group in members(found.group_of, found.groups)])
    assert 4.3 < mean < 4.7
