"""`make bench NAME=published` ends with one JSON object, with the names and figures promised."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.planning import epochs, published
from benchmarks.planning.costs import synthetic


def report_of(*arguments: str) -> Any:
    given = [*arguments, "--json"]
    result = CliRunner().invoke(published.command, given, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def costs(tmp_path: Path) -> str:
    table = synthetic(9000, seed=1)
    path = tmp_path / "costs.npz"
    np.savez(path, tiles=table.costs[:, 0], tokens=table.costs[:, 1], source=table.sources)
    return str(path)


BUDGETS = ("--budget", "tiles=9", "--budget", "tokens=4096")


def test_groups_without_pairs_repeat_none_and_have_no_padding() -> None:
    assert epochs.repeat_pairs([[1]], [[1]]) == 0
    assert epochs.pad_ratio([]) == 0


@pytest.mark.parametrize("mode", ["window", "exact", "epoch"])
def test_every_strategy_is_reported(costs: str, mode: str) -> None:
    report = report_of(
        "--costs", costs, *BUDGETS, "--ranks", "4", "--accumulate", "8",
        "--mode", mode,
    )  # fmt: skip
    assert report["samples"] == report["planned"] == 9000
    assert report["oversize"] == 0
    assert report["groups"] >= report["groups_lower_bound"] > 0
    assert report["seconds"] >= 0
    assert set(report["strategies"]) - {"isf_flushed"} == set(published.NAMES)
    for entry in report["strategies"].values():
        assert set(entry["dist_ratio"]) == {"tiles", "tokens"}
        assert 0 < entry["efficiency"] <= 1
        assert {"left_over", "chi2", "seconds"} <= set(entry)
    ours = report["strategies"]["balanced"]
    assert ours["over_budget"] == ours["left_over"] == 0
    assert ours["repeat_pairs"] < 0.01
    for name in ("random", "length", "isf", "transformers_rebalance", "megatron_dp_balanced"):
        assert ours["efficiency"] > report["strategies"][name]["efficiency"]


def test_window_plans_meet_their_figures(costs: str) -> None:
    report = report_of(
        "--costs", costs, *BUDGETS, "--ranks", "8", "--accumulate", "16",
        "--strategy", "balanced",
    )  # fmt: skip
    ours = report["strategies"]["balanced"]
    assert ours["efficiency"] >= 0.98
    assert max(ours["dist_ratio"].values()) <= 0.02
    assert report["groups"] <= 1.03 * report["groups_lower_bound"]
