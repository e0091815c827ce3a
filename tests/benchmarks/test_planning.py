"""The planning benches: one JSON object as the last line, with the names and figures promised."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.planning import order as bench_order
from benchmarks.planning import padded as bench_padded
from benchmarks.planning import step as bench_step
from benchmarks.planning import waits as bench_waits
from benchmarks.planning.costs import read_costs, synthetic
from counterpoise.tools.inputs.budgets import parse_budgets


def last_line(command: click.Command, *arguments: str) -> Any:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def costs(tmp_path: Path) -> str:
    table = synthetic(9000, seed=1)
    path = tmp_path / "costs.npz"
    np.savez(path, tiles=table.costs[:, 0], tokens=table.costs[:, 1], source=table.sources)
    return str(path)


BUDGETS = ("--budget", "tiles=9", "--budget", "tokens=4096")


@pytest.mark.parametrize("virtual", ["1", "2"])
def test_order_reports_every_strategy(virtual: str) -> None:
    report = last_line(
        bench_order.command, "--stages", "4", "--microbatches", "16", "--sigma", "1",
        "--virtual", virtual, "--draws", "3",
    )  # fmt: skip
    entries = report["strategies"]
    assert set(entries) == {"random", "disttrain_alg3", "two_opt", "multi_start"}
    assert entries["random"]["speedup"] == pytest.approx(1)
    assert entries["multi_start"]["speedup"] >= entries["two_opt"]["speedup"] > 1
    assert all(entry["gap_to_optimum"] is None for entry in entries.values())


def test_order_measures_the_gap_where_all_orders_can_be_tried(costs: str) -> None:
    report = last_line(
        bench_order.command, "--stages", "3", "--microbatches", "6", "--draws", "2",
        "--costs", costs,
    )  # fmt: skip
    gaps = {name: entry["gap_to_optimum"] for name, entry in report["strategies"].items()}
    assert gaps["random"] > gaps["two_opt"] >= gaps["multi_start"] >= 0


def test_step_reports_every_strategy(costs: str) -> None:
    report = last_line(
        bench_step.command, "--costs", costs, *BUDGETS, "--ranks", "4", "--stages", "3",
        "--microbatches", "8", "--draws", "2", "--relax", "1.13",
    )  # fmt: skip
    for figure in ("over_bound", "over_equal"):
        rates = {name: entry[figure] for name, entry in report["strategies"].items()}
        assert set(rates) == {"random", "disttrain", "disttrain_two_opt", "balanced"}
        assert rates["balanced"] < rates["disttrain_two_opt"] < rates["random"]
    for entry in report["strategies"].values():
        least, most = entry["over_bound_range"]
        assert 1 <= least <= entry["over_bound"] <= most


def test_waits_reports_every_strategy_below_its_bound(costs: str) -> None:
    report = last_line(
        bench_waits.command, "--costs", costs, "--ranks", "8", "--accumulate", "4", "--draws", "2"
    )
    (setting,) = report["settings"]
    found = setting["strategies"]
    assert set(found) == {"bound", *bench_waits.STRATEGIES}
    for entry in found.values():
        assert entry["microbatch"] <= found["bound"]["microbatch"] <= 1
        assert entry["step"] <= found["bound"]["step"] <= 1
    ours = found["balanced, microbatch"]["microbatch"]
    assert ours >= 0.975
    assert ours > max(found[name]["microbatch"] for name in ("greedy", "single_key"))
    assert found["balanced, step"]["step"] > found["balanced, microbatch"]["step"]


def test_waits_reads_image_sizes_and_picks_sources(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "sizes.npz", img_w=rng.integers(100, 2000, 500), img_h=np.full(500, 448),
        img_offset=np.arange(501), text_tokens=rng.integers(5, 900, 500),
        source=np.arange(500) % 2, sources=np.array(["memes", "charts"]),
    )  # fmt: skip
    given = ("--costs", str(tmp_path / "sizes.npz"), "--ranks", "2", "--accumulate", "2")
    report = last_line(bench_waits.command, *given, "--source", "charts", "--draws", "1")
    assert (report["samples"], report["sources"]) == (250, ["charts"])
    with pytest.raises(ValueError, match="no source 'cats'; there are memes, charts"):
        last_line(bench_waits.command, *given, "--source", "cats")


def test_a_table_for_people_is_printed_without_json() -> None:
    arguments = ["--stages", "3", "--microbatches", "6", "--draws", "1"]
    result = CliRunner().invoke(bench_order.command, arguments)
    assert result.exit_code == 0
    assert "two_opt" in result.stdout


def test_the_same_seed_gives_the_same_set() -> None:
    one, other = (read_costs(None, ("tiles", "tokens"), 50, 4) for _ in range(2))
    assert np.array_equal(one.costs, other.costs)


def test_wrong_input_is_named(costs: str) -> None:
    for text in ("tiles", "tiles=", "tiles=0", "=4", "tiles=x"):
        with pytest.raises(ValueError, match="write RESOURCE=AMOUNT"):
            parse_budgets((text,))
    with pytest.raises(ValueError, match="no column 'frames'"):
        read_costs(Path(costs), ("frames",), 0, 0)


@pytest.mark.parametrize("tiles", [False, True])
def test_padded_plans_are_no_worse_than_others(costs: str, tiles: bool) -> None:
    given = ("--costs", costs) if tiles else ("--samples", "2000")
    report = last_line(
        bench_padded.command, *given, "--ranks", "4", "--accumulate", "2",
        "--steps", "4",
    )  # fmt: skip
    assert report["peer"]
    assert len(report["cases"]) == (4 if tiles else 2)
    for name, case in report["cases"].items():
        over = case["over_random"]
        assert over["random"] == 1
        assert over["bound"] < over["ours, free"] < over["ours, equal"] < 1
        assert case["worst_over_random"] <= 1
        if "tiles" not in name:
            # rows are improved on a grid of points, and others may leave microbatches empty
            assert case["ours_over_baseline"] <= 1.01
            assert over["ours, free"] < over["transformers"] * 1.01
            assert over["ours, equal"] == pytest.approx(over["prototype, equal"])
