"""Each bench runs once with small arguments, and ends with one JSON object of the promised names.

What they measure is asserted where it says something of the product.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import BENCHES, group
from benchmarks.loading.systems import peers
from benchmarks.planning import picture
from benchmarks.planning.costs import synthetic
from counterpoise.tools.cli import main

BUDGETS = "--budget tiles=9 --budget tokens=4096"
SMALL_MODEL = "--ranks 2 --microbatches 4 --blocks 4 --hidden 16 --tokens 4 --words 8"
# bench, its arguments, names in its object; COSTS is a table of costs.
SHORT = [
    ("analyze", "--samples 8 --rounds 1", "sets"),
    ("balancer", "--ranks 1,3 --rounds 1 --steps 1 --samples 5000", "way samples cells"),
    ("faults", "--seeds 5", "seeds failed_seeds seeds_with"),
    ("order", "--stages 3 --microbatches 6 --draws 2 --costs COSTS", "strategies"),
    ("order", "--stages 4 --microbatches 16 --virtual 2 --draws 3", "strategies"),
    ("padded", "--samples 2000 --ranks 4 --accumulate 2 --steps 4", "cases peer"),
    ("padded", "--costs COSTS --ranks 4 --accumulate 2 --steps 4", "cases peer"),
    ("papers", "--paper omnibal", "rows"),
    ("published", f"--costs COSTS {BUDGETS} --ranks 4 --accumulate 8 --mode exact", "groups"),
    ("rollouts", "--cell 512x8 --cell 66x64 --cell 512x8x8192 --cell 70x8x8192 --rounds 1",
     "bars deals microbatches verl"),
    ("shapes", "--samples 9000 --ranks 8 --batch-size 4", "samples sets"),
    ("step", f"--costs COSTS {BUDGETS} --ranks 4 --stages 3 --microbatches 8 --draws 2",
     "strategies"),
    ("vocabulary_layers", "--words 64 --hidden 8 --tokens 16 --dtype fp32 --device cpu --rounds 3",
     "words"),
    ("waits", "--costs COSTS --ranks 8 --accumulate 4 --draws 2", "settings"),
]  # fmt: skip
LONG = [
    ("overlap", "--chunks 1,2 --link-ms 4 --product-ms 2 --repeats 1", "ranks chunks"),
    ("balancer", "--ranks 1 --rounds 1 --steps 1 --tcp", "way cells"),
    ("decoding", "--samples 8 --rounds 1 --batch-size 2 --tile-size 32", "best pipelines"),
    ("encoder", "--drift --rounds 1", "agrees"),
    ("encoder", "--microbatches 8 --rounds 1", "cases agrees"), ("gpu", "--minutes 0.1", "parts"),
    ("gpu", "--part tensor --minutes 0.001", "parts"), ("job", "--repeats 1", ""),
    ("local", "--rounds 1 --cell 602112x32", "cells"),
    ("matrix", "--cell 150000x32 --workers 1 --pairs 1", "cells peers"),
    ("metrics", "--samples 64 --rounds 1", ""), ("picture", "", "samples steps ways"),
    ("published", f"--costs COSTS {BUDGETS} --ranks 4 --accumulate 8 --mode epoch", "groups"),
    ("runtime", f"--schedule zbv {SMALL_MODEL} --rounds 1 --repeats 1", "ratios schedules"),
    ("start", "--repeats 1 --epochs 1 --workers 1", "kinds later_epochs"),
    ("threads", "--rounds 1 --samples 5000", ""), ("transports", "--pairs 1", "cells"),
]  # fmt: skip


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """A table of costs."""
    table = synthetic(9000, seed=1)
    path = tmp_path / "costs.npz"
    np.savez(path, tiles=table.costs[:, 0], tokens=table.costs[:, 1], source=table.sources)
    return path


def report_of(name: str, words: str, costs: Path) -> Any:
    """Return the object that a bench ends with."""
    asked = [name, *words.replace("COSTS", str(costs)).split(), "--json"]
    done = CliRunner().invoke(group, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "names"),
    [*SHORT, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG)],
)
def test_a_bench_ends_with_its_object(
    name: str, words: str, names: str, costs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("COUNTERPOISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = report_of(name, words, costs)
    assert set(names.split()) <= set(report)
    check = globals().get(f"check_{name}")
    if check is not None:
        check(report)


# --- what they say of the product


def check_faults(report: Mapping[str, Any]) -> None:
    assert report["failed_seeds"] == []


def check_gpu(report: Mapping[str, Any]) -> None:
    for name, rows in report["parts"].items():
        assert "result" not in rows[0], name  # it says why it was not run
    for row in report["parts"].get("pipelines", ()):
        assert float(row["gradients' error, ours"]) < 1e-5


def check_order(report: Mapping[str, Any]) -> None:
    found = report["strategies"]
    assert found["two_opt"]["speedup"] > 1
    gaps = [found[name]["gap_to_optimum"] for name in ("random", "two_opt")]
    assert gaps == [None] * 2 or gaps[0] > gaps[1] >= 0


def check_shapes(report: Mapping[str, Any]) -> None:
    for name, plans in report["sets"].items():
        ours = {plan: row for plan, row in plans.items() if plan.startswith("ours")}
        assert all(row["one_shape"] == 1 for row in plans.values())
        assert all(row["dropped"] == row["repeated"] == 0 for row in ours.values())
        assert plans["Automodel's rule"]["dropped"] > 0 < plans["diffusers' rule"]["repeated"]
        for plan, row in ours.items():
            assert row["work_over_bound"] <= 1.05, (name, plan)
            assert row["time_of_epoch"] < plans["diffusers' rule"]["time_of_epoch"]


def check_padded(report: Mapping[str, Any]) -> None:
    for name, case in report["cases"].items():
        over = case["over_random"]
        assert over["bound"] < over["ours, free"] < over["ours, equal"] < 1 == over["random"]
        assert case["worst_over_random"] <= 1
        if "tiles" not in name:
            # rows are improved on a grid of points, and others may leave microbatches empty
            assert case["ours_over_baseline"] <= 1.01
            assert over["ours, free"] < over["transformers"] * 1.01
            assert over["ours, equal"] == pytest.approx(over["prototype, equal"])


def check_papers(report: Mapping[str, Any]) -> None:
    assert any(row["reason"].startswith("Needs the data folder") for row in report["rows"])


def check_picture(report: Mapping[str, Any]) -> None:
    # the same samples, so the same tokens but for padding and waiting
    tokens = [
        way["step_tokens"] * (1 - way["waiting"] - way["padding"])
        for way in report["ways"].values()
    ]
    assert tokens == pytest.approx(tokens[:1] * 3)
    random, auto, packed = (report["ways"][way]["step_tokens"] for way in picture.WAYS)
    assert random > auto > packed


def check_published(report: Mapping[str, Any]) -> None:
    assert report["samples"] == report["planned"] == 9000
    assert report["groups"] >= report["groups_lower_bound"] > 0
    ours = report["strategies"]["balanced"]
    assert ours["over_budget"] == ours["left_over"] == 0
    assert ours["repeat_pairs"] < 0.01
    for name in ("random", "length", "isf", "transformers_rebalance", "megatron_dp_balanced"):
        assert ours["efficiency"] > report["strategies"][name]["efficiency"]


def check_rollouts(report: Mapping[str, Any]) -> None:
    assert report["verl"] is None
    assert all(bar["above"] == [] for bar in report["bars"])
    bars = {bar["bar"]: bar for bar in report["bars"]}
    assert bars["rollouts of ours missing or twice"]["cells"] == 8 + 8
    for row in report["deals"]:
        contenders = row["contenders"]
        assert contenders["verl"] == {"error": "not called: give --verl PYTHON"}
        others = [contenders[name] for name in ("openrlhf", "trl") if name in contenders]
        for rule in others:
            if not rule["missing"]:
                assert contenders["ours"]["max_over_mean"] <= rule["max_over_mean"]
        sizes = contenders["ours"]["counts"]
        assert row["counts"] == "free" or sizes[1] - sizes[0] <= 1
    for row in report["microbatches"]:
        for name in ("ours, equal", "ours, free"):
            fewest, most = row["contenders"][name]["microbatches"]
            assert fewest == most
        # 8,192 tokens are more than any rollout has, and TRL's pieces of equal counts are no budget
        assert row["contenders"]["trl"]["over_budget"] > 0


def check_runtime(report: Mapping[str, Any]) -> None:
    for cell in report["schedules"].values():
        assert max(cell["max_relative_error"].values()) < 1e-5


def check_step(report: Mapping[str, Any]) -> None:
    for figure in ("over_bound", "over_equal"):
        rates = {name: entry[figure] for name, entry in report["strategies"].items()}
        assert rates["balanced"] < rates["disttrain_two_opt"] < rates["random"]
    assert all(entry["over_bound_range"][0] >= 1 for entry in report["strategies"].values())


def check_waits(report: Mapping[str, Any]) -> None:
    (setting,) = report["settings"]
    found = setting["strategies"]
    for entry in found.values():
        assert entry["microbatch"] <= found["bound"]["microbatch"] <= 1
        assert entry["step"] <= found["bound"]["step"] <= 1
    ours = found["balanced, microbatch"]["microbatch"]
    assert ours >= 0.975
    assert ours > max(found[name]["microbatch"] for name in ("greedy", "single_key"))
    assert found["balanced, step"]["step"] > found["balanced, microbatch"]["step"]


def test_window_plans_meet_their_figures(costs: Path) -> None:
    words = f"--costs COSTS {BUDGETS} --ranks 8 --accumulate 16 --strategy balanced"
    report = report_of("published", words, costs)
    ours = report["strategies"]["balanced"]
    assert ours["efficiency"] >= 0.98
    assert max(ours["dist_ratio"].values()) <= 0.02
    assert report["groups"] <= 1.03 * report["groups_lower_bound"]


@pytest.mark.long
def test_the_readme_shows_what_the_picture_draws(root: Path, data: Path, tmp_path: Path) -> None:
    if not (data / "shards").is_dir():
        pytest.skip("no shards here")
    out = tmp_path / "step.svg"
    report = report_of("picture", f"--data {data}/shards/*.tar --out {out}", out)
    assert out.read_text() == (root / "docs" / "images" / "step.svg").read_text()
    for way in report["ways"].values():
        assert f"{way['step_tokens']:,.0f}" in (root / "README.md").read_text()


# --- all benches


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_explains_itself(name: str) -> None:
    result = CliRunner().invoke(group, [name, "--help"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_every_bench_is_run() -> None:
    tried = {name for name, *_ in (*SHORT, *LONG)}
    # of others' loaders in an environment of its own; of tar shards in a store of its own
    assert set(BENCHES) - tried == {"peers", "stores", "row_groups"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("faults --seeds 0", "counterpoise: --seeds is 0"),
        ("start --repeats 0", "got 0 repeats"),
        ("balancer --ranks 1,1921", "give 1 to 1920 ranks"),
        ("matrix --cell axb", "BYTESxBATCH"),
        ("encoder --dispatch costs.npz --drift", "are cases apart; give one of them"),
    ],
)
def test_a_mistake_is_told_on_standard_error(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split(), group=group)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert error in err


def test_every_peer_is_pinned() -> None:
    text = Path(__file__).with_name("peers.txt").read_text()
    assert set(re.findall(r"^([\w-]+)==", text, re.M)) == {*peers.PEERS, "torch"}
