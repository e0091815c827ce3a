"""What which.md shows and what `analyze` prints to paste plan as even as is said of them."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.planning.costs import synthetic
from counterpoise.balancer.planning.forecast import plan_windows
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.analyze.report import LoopNow, make_report
from counterpoise.tools.analyze.scan.rows import Rows
from tests.flat_options import flat_balance

# What a tar data set with VisionLanguage tells of a sample: not only what is work.
RESOURCES = ("tiles", "tokens", "label_tokens")
TILE_TOKENS = 307


def shown_balance(root: Path) -> Balance:
    """The Balance of which.md's example, word for word."""
    text = (root / "docs/which.md").read_text()
    (code,) = re.findall(
        r"^balance = (cp\.Balance\(.*?\))(?:  #.*)?\n(?=loader)", text, re.M | re.S
    )
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    given: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return flat_balance(**given)


def as_the_loader_plans(balance: Balance, ranks: int) -> PlanConfig:
    return PlanConfig.from_balance(balance, ranks=ranks, resources=RESOURCES)


def labelled(costs: np.ndarray) -> np.ndarray:
    """Costs with label tokens that say little of the work."""
    labels = np.random.default_rng(0).integers(1, 900, len(costs))
    return np.column_stack([costs, np.minimum(labels, costs[:, 1])])


def waiting(costs: np.ndarray, config: PlanConfig) -> float:
    """The share of waiting in whole steps, by the definition: of tiles, then of tokens."""
    order = permutation(len(costs), 0, 0)
    whole = costs[order[: len(costs) // config.samples_per_step * config.samples_per_step], :2]
    work = time = 0
    for (batch,) in plan_windows(config, np.column_stack([whole, whole[:, 1]])):
        for row in zip(*batch.ranks, strict=True):
            sums = np.array([whole[list(one.ordinals)].sum(axis=0) for one in row])
            work += (sums * (TILE_TOKENS, 1)).sum() / config.ranks
            time += (sums * (TILE_TOKENS, 1)).max(axis=0).sum()
    return float(1 - work / time)


@pytest.mark.parametrize(("ranks", "most"), [(8, 0.01), (32, 0.03)])
def test_the_example_waits_no_more_than_planning_md_says(
    root: Path, data: Path, ranks: int, most: float
) -> None:
    path = data / "metadata" / "calibrated_1200k.npz"
    if not path.is_file():
        pytest.skip("no metadata here")
    with np.load(path) as arrays:
        costs = np.stack([arrays["tiles"], arrays["tokens"]], axis=1).astype(np.int64)
    some = costs[permutation(len(costs), 0, 0)[:20_000]]
    assert waiting(some, as_the_loader_plans(shown_balance(root), ranks)) <= most


def test_the_settings_that_analyze_prints_deliver_what_it_foretells() -> None:
    table = synthetic(4000, seed=3)
    rows = Rows(RESOURCES, labelled(table.costs), table.sources, ("a", "b", "c"))
    report = make_report(rows, len(rows), LoopNow(ranks=8, accumulate=4), {})
    balance = Balance.from_json(json.dumps(report["recommended"]["balance"]))
    delivered = waiting(rows.costs, as_the_loader_plans(balance, 8))
    assert delivered == pytest.approx(report["forecast"]["waiting"], abs=1e-9)
    assert delivered < 0.02
    once = report["other_plans"]['waits="step"']
    assert report["forecast"]["time"] < once < 1
