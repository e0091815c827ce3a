"""`bench bubbles` and `schedule fill` as a user meets them, and figures they must reach."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.sched import check, parse_program
from counterpoise.sched.bubble_filling.encoder_plans import host_step
from counterpoise.sched.bubble_filling.gaps import COMMUNICATING, COMPUTING, FREE
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.setup import dump_setup
from counterpoise.tools.bench.bubbles.chart import chart_svg
from counterpoise.tools.bench.bubbles.command import TABLE_3, TABLE_6, bench
from counterpoise.tools.bench.bubbles.jitter import jitter_report
from counterpoise.tools.bench.bubbles.sensitivity import Point
from counterpoise.tools.bench.bubbles.settings import PAPER, SETTINGS, setting_report, table_report
from counterpoise.tools.bench.bubbles.uneven import uneven_report
from counterpoise.tools.cli import main

pytestmark = pytest.mark.slow

KEYS = {
    "eff_coarse",
    "eff_fine",
    "eff_split",
    "upper_bound",
    "step_seconds",
    "seconds",
    "planner_seconds",
    "best_plan",
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run `counterpoise` with these words; its status, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


# Two take longer than the first, and show the same.
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in SETTINGS[1:]]


@pytest.fixture(scope="module", params=[SETTINGS[0], *OTHERS])
def setting(request: pytest.FixtureRequest) -> tuple[str, dict]:
    return request.param, setting_report(request.param)


def test_a_setting_has_exactly_the_promised_keys(setting) -> None:
    _, report = setting
    assert set(report) == KEYS
    assert set(report["step_seconds"]) == {"balanced", "whole", "split", "llm_only"}


def test_the_papers_table_7_is_reached(setting) -> None:
    name, report = setting
    coarse = PAPER[name][0]
    fine = {"1536": 57.5, "2048": 69.0, "3072": 85.0}[name]
    assert 100 * report["eff_coarse"] == pytest.approx(coarse, abs=1)
    assert 100 * report["eff_fine"] >= fine
    assert report["eff_split"] >= 0.95
    assert report["eff_fine"] <= report["upper_bound"]


def test_the_steps_are_as_long_as_promised(setting) -> None:
    name, report = setting
    steps = report["step_seconds"]
    assert steps["balanced"] == pytest.approx(PAPER[name][3], rel=0.04)
    assert steps["split"] <= 1.01 * steps["llm_only"]
    assert steps["llm_only"] <= steps["split"] <= steps["whole"] < steps["balanced"]


def test_the_planners_own_choice_is_at_least_as_good(setting) -> None:
    _, report = setting
    assert report["best_plan"]["step_seconds"] <= report["step_seconds"]["split"]
    assert report["best_plan"]["memory_gb"] <= 80


def stands_beside_the_papers(table: Mapping[str, Any]) -> None:
    assert table["paper"]
    assert "LLAMA-70B" in table["guessed"]
    for row in table["rows"].values():
        assert row["split_vs_balanced"] >= row["whole_vs_balanced"] > 1
        assert row["whole_vs_megatron"] > 1


@pytest.mark.long
def test_the_report_has_settings_tables_and_jitter() -> None:
    whole = bench(("3072",))
    json.dumps(whole)
    assert set(whole) == {"3072", "table3", "table6", "jitter"}
    assert set(whole["table3"]["rows"]) == {"A", "B", "C", "D"}
    assert set(whole["table6"]["rows"]) == {"11+5", "22+5", "22+11"}
    stands_beside_the_papers(whole["table3"])
    stands_beside_the_papers(whole["table6"])


def test_a_row_of_tables_3_and_6_stands_beside_the_papers() -> None:
    stands_beside_the_papers(table_report(("A",), TABLE_3))
    stands_beside_the_papers(table_report(("11+5",), TABLE_6))


def test_planning_again_takes_back_half_of_a_drift() -> None:
    found: dict[str, Any] = jitter_report()
    assert found["recovered_at_0.1"] >= 0.5


def knowing_beats_mean(report: dict[str, object]) -> None:
    for kernels in ("whole", "split"):
        for row in report[kernels].values():  # type: ignore[attr-defined]
            assert row["gain"] > 1, report


@pytest.mark.long
def test_a_plan_that_knows_unequal_microbatches_is_shorter() -> None:
    knowing_beats_mean(uneven_report(None, steps=1))


@pytest.mark.long
def test_the_same_on_real_costs(data: Path) -> None:
    knowing_beats_mean(uneven_report(data / "metadata" / "calibrated_665k.npz", steps=1))


def test_the_chart_is_small_and_says_what_it_shows() -> None:
    row = [Point(x, 0.5, 0.9, 1.0, 1.1) for x in (0.1, 0.2, 0.4)]
    drift = {cv: {"offline": 0.01, "guarded": 0.01, "replanned": 0.0} for cv in ("0.0", "0.1")}
    text = chart_svg({"size": row}, {"drift": drift})
    assert text.startswith("<svg")
    assert len(text) < 20_000
    assert "variation" in text


# schedule fill


def fill(run, *words: str) -> dict:
    status, out, err = run("schedule", "fill", "--case", "A", *words, "--json")
    assert status == 0, err
    return json.loads(out.splitlines()[-1])


def test_fill_names_the_best_plan_and_those_refused(run) -> None:
    report = fill(run)
    assert report["best"]["step_seconds"] >= report["llm_only_seconds"]
    assert report["best"]["eff"] <= report["best"]["upper_bound"] <= 1


def test_fill_prints_bubbles_and_plans(run) -> None:
    status, out, _ = run("schedule", "fill", "--case", "A", "--pp-enc", "2", "--tp-enc", "8")
    assert status == 0
    assert "reduce-scatter" in out
    assert "hidden" in out


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.json", "a.txt"])
def test_fill_writes_what_the_suffix_says(run, tmp_path: Path, name: str) -> None:
    fill(
        run, "--pp-enc", "2", "--tp-enc", "8", "--microbatches", "4", "--out", str(tmp_path / name)
    )
    assert (tmp_path / name).stat().st_size > 1000


def test_fill_options_change_what_they_say(run) -> None:
    base = ("--pp-enc", "2", "--tp-enc", "8", "--microbatches", "4")
    whole = fill(run, *base, "--whole")
    assert {one["longest_piece_us"] for one in whole["plans"]} == {None}
    printed = fill(run, *base, "--printed")
    assert printed["best"]["step_seconds"] >= whole["best"]["step_seconds"] - 1e-3
    frozen = fill(run, *base, "--frozen")
    assert frozen["best"]["exposed_seconds"][1] == 0
    costs = [word for cost in ("3000", "500", "400", "100") for word in ("--cost", cost)]
    assert fill(run, *base, *costs, "--fixed")["order"] == [0, 1, 2, 3]
    fill(run, *base, "--guard", "10", "--slack", "2.5")
    tight = fill(run, "--guard", "10", "--whole", "--tp-enc", "1", "--warmup", "megatron")
    assert tight["refused"]
    assert tight["plans"]
    slower = fill(run, *base, "--encoder-collectives")
    assert slower["llm_only_seconds"] > whole["llm_only_seconds"]


def test_an_executable_plan_has_whole_layers_and_says_what_kernels_would_add(
    run, tmp_path: Path
) -> None:
    base = ("--case", "3072", "--pp-enc", "2", "--tp-enc", "8", "--executable")
    report = fill(run, *base, "--out", str(tmp_path / "filled.txt"))
    assert report["best"]["eff"] < report["kernel_level"]["eff"]
    assert report["best"]["step_seconds"] >= report["kernel_level"]["step_seconds"]
    assert report["best"]["longest_piece_us"] is None
    check(parse_program((tmp_path / "filled.txt").read_text()))
    _, out, _ = run("schedule", "fill", *base)
    assert "which the runtime cannot run yet, would hide" in out
    status, _, err = run("schedule", "fill", *base, "--printed")
    assert status != 0
    assert "--executable plans simulated steps by our search; leave out the other" in err


def test_fill_reads_a_profile_and_a_trace(run, tmp_path: Path) -> None:
    setup = case_setup("A")
    (tmp_path / "job.json").write_text(dump_setup(setup))
    found = fill(run, "--profile", str(tmp_path / "job.json"), "--pp-enc", "1", "--tp-enc", "8")
    assert found["best"]["pp_enc"] == 1
    (tmp_path / "bad.json").write_text("{}")
    status, _, err = run("schedule", "fill", "--trace", str(tmp_path / "bad.json"))
    assert status == 2
    assert "traceEvents" in err


def test_fill_takes_the_bubbles_of_a_measured_step(run, tmp_path: Path) -> None:
    host = host_step(case_setup("A"))
    events = []
    for rank, one in enumerate(host.gaps.ranks):
        parts = zip(one.start.tolist(), one.end.tolist(), one.kind.tolist(), strict=True)
        names = {COMPUTING: "gemm", COMMUNICATING: "nccl_gather"}
        events += [(names[k], a, b, "kernel", rank) for a, b, k in parts if k != FREE]
    end = host.gaps.step_ns
    events += [("nccl_gather", 0, 1000, "kernel", 0), ("nccl_all", end - 1000, end, "kernel", 0)]
    for at, need in enumerate(host.gaps.need_ns.tolist()):
        back = int(host.gaps.gradient_ns[at])
        events.append((f"0F{at}", need, need + 1000, "user_annotation", 0))
        events.append((f"0B{at}", back - 1000, back, "user_annotation", 0))
    rows = [
        {
            "ph": "X", "name": name, "cat": cat, "ts": a / 1e3, "dur": (b - a) / 1e3,
            "pid": rank, "args": {"device": rank},
        }
        for name, a, b, cat, rank in events
    ]  # fmt: skip
    file = tmp_path / "step.json"
    file.write_text(json.dumps({"traceEvents": rows}))
    report = fill(run, "--trace", str(file), "--pp-enc", "2", "--tp-enc", "8")
    assert report["llm_only_seconds"] == host.gaps.step_ns / 1e9
    status, _, err = run("schedule", "fill", "--trace", str(file))
    assert status == 2
    assert "4 devices and 8 microbatches, the profile 8 and 16" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pp-enc", "3"), "3 ranks do not divide 4"),
        (("--out", "x.bmp"), "end it in .svg"),
        (("--profile", "nowhere.json"), "nowhere.json"),
        (("--cost", "5"), "1 costs for 8 microbatches"),
    ],
)
def test_fill_says_what_is_wrong(run, words: tuple[str, ...], said: str) -> None:
    status, _, err = run("schedule", "fill", "--case", "A", *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err


def test_the_bench_writes_uneven_costs_as_json(run, tmp_path: Path, monkeypatch) -> None:
    one_step = functools.partial(uneven_report, steps=1)
    monkeypatch.setattr(f"{bench.__module__}.uneven_report", one_step)
    rng = np.random.default_rng(0)
    file = tmp_path / "costs.npz"
    np.savez(file, tiles=rng.integers(0, 8, 4000), tokens=rng.integers(100, 2000, 4000))
    status, out, _ = run("bench", "bubbles", "--uneven", "--costs", str(file), "--json")
    assert status == 0
    assert json.loads(out.splitlines()[-1])["costs"] == "costs.npz"
