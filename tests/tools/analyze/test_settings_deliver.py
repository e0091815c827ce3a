"""What which.md shows and what `analyze` prints to paste plan as even as is said of them."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.planning.costs import synthetic
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.loader.balanced.arguments import make_plan
from counterpoise.tools.analyze.model.report import ReportOptions, make_report
from counterpoise.tools.analyze.model.strategies import Plan
from counterpoise.tools.analyze.scan.rows import Rows
from counterpoise.tools.inputs.cost_tables import CostTable, from_planner

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
    return Balance(**given)


def as_the_loader_plans(balance: Balance, ranks: int) -> PlanConfig:
    return make_plan(
        balance, resources=RESOURCES, ranks=ranks, batch_size=1, drop_last=False,
        empty_microbatches=True,
    )  # fmt: skip


def labelled(costs: np.ndarray) -> np.ndarray:
    """Costs with label tokens that say little of the work."""
    labels = np.random.default_rng(0).integers(1, 900, len(costs))
    return np.column_stack([costs, np.minimum(labels, costs[:, 1])])


def waiting(table: CostTable, config: PlanConfig) -> float:
    """The share of waiting in whole steps, as `analyze` defines it."""
    found = from_planner(table, config)
    sums = np.array([table.costs[group][:, :2].sum(axis=0) for group in found.groups])
    rows = sums[found.rows[: found.whole_rows]] * (TILE_TOKENS, 1)
    return 1 - float(rows.sum() / config.ranks / rows.max(axis=1).sum())


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
    table = CostTable(RESOURCES, labelled(some), np.zeros(len(some), np.int64))
    assert waiting(table, as_the_loader_plans(shown_balance(root), ranks)) <= most


def make_rows() -> Rows:
    table = synthetic(4000, seed=3)
    return Rows(RESOURCES, labelled(table.costs), np.zeros(4000, np.int64), table.sources,
                ("a", "b", "c"))  # fmt: skip


def report_in(mode: Any) -> dict[str, Any]:
    rows = make_rows()
    return make_report(rows, len(rows), ReportOptions(Plan(ranks=8, accumulate=4), mode=mode))


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    return report_in("exact")


def check_delivered(report: dict[str, Any]) -> None:
    """Compare a plan by the settings that a report prints with what the report foretells."""
    rows = make_rows()
    balance = Balance.from_json(json.dumps(report["recommended"]["balance"]))
    delivered = waiting(
        CostTable(RESOURCES, rows.costs, rows.source_of), as_the_loader_plans(balance, 8)
    )
    assert delivered == pytest.approx(report["waiting"]["balanced"], abs=1e-9)


def test_the_settings_that_analyze_prints_deliver_what_it_foretells(exact: dict[str, Any]) -> None:
    check_delivered(exact)


@pytest.mark.long
def test_so_do_those_in_windows() -> None:
    check_delivered(report_in("window"))


def test_analyze_says_what_each_plan_gives_in_each_loop(exact: dict[str, Any]) -> None:
    found, waits = exact, exact["waits"]
    assert set(waits) == {"random", "microbatch", "step"}
    assert waits["microbatch"]["microbatch"] == found["waiting"]["balanced"]
    assert waits["random"]["microbatch"] == found["waiting"]["random"]
    assert waits["microbatch"]["microbatch"] < waits["step"]["microbatch"]
    assert waits["step"]["step"] < waits["microbatch"]["step"] < waits["random"]["step"]
    assert waits["step"]["step"] < 0.005
