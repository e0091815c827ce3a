"""The demo delivers every sample in all runs, and balanced is better in every counted figure."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from counterpoise.balancer.planning.kernels import loops
from counterpoise.tools.cli import main
from tests.forking.popen import COMMAND, run as run_forked

pytestmark = pytest.mark.slow

FIELDS = {
    "samples", "padding", "waiting", "samples_per_second", "first_batch_s", "wait_for_data_s",
    "loss_first", "loss_last",
}  # fmt: skip
COUNTED = ("samples", "padding", "waiting", "loss_first", "loss_last")


def counterpoise(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return run_forked([COMMAND, *words], env=environment)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(report: dict[str, Any], samples: int) -> None:
    torch, balanced = report["torch"], report["balanced"]
    assert list(report) == ["balanced", "ours", "torch"]
    for run in report.values():
        assert set(run) == FIELDS
        assert run["samples"] == samples
        assert run["loss_last"] < run["loss_first"]
    assert {n: torch[n] for n in COUNTED} == {n: report["ours"][n] for n in COUNTED}
    assert balanced["padding"] == 0 < torch["padding"]
    assert balanced["waiting"] < torch["waiting"] / 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    # 100 samples in steps of 64: the last step is not full.
    words = ["--samples", "100", "--workers", "1"]
    return counterpoise(tmp_path_factory.mktemp("cache"), "demo", "--json", *words)


def test_every_sample_arrives_and_balanced_is_better(run: subprocess.CompletedProcess[str]) -> None:
    check(report_of(run), 100)


def test_all_runs_learn_the_same(run: subprocess.CompletedProcess[str]) -> None:
    report = report_of(run)
    for name in ("loss_first", "loss_last"):
        assert report["torch"][name] == pytest.approx(report["balanced"][name], rel=1e-2)


def test_only_the_report_goes_to_standard_output(run: subprocess.CompletedProcess[str]) -> None:
    assert len(run.stdout.splitlines()) == 1
    assert "samples/s" in run.stderr


def test_a_table_compares_the_runs_and_three_lines_say_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loops, "IS_COMPILED", False)  # as where there was no compiler
    loops._say_once.cache_clear()
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--samples", "64", "--workers", "1"])
    assert not ended.value.code
    table, said = capfd.readouterr()
    # in front of all bars, and not within one
    assert said.startswith("counterpoise: the planning kernels are not compiled")
    assert said.count("are not compiled") == 1
    for title in ("torch", "ours", "balanced", "wait for the slowest", "samples/s of 8 ranks"):
        assert title in table
    assert all(len(line) <= 98 for line in table.splitlines())
    steps = table.split("With your own data:\n")[1].splitlines()
    assert [line.split()[0] for line in steps] == [
        "counterpoise",
        "counterpoise.DataLoader(...,",
        "docs/start.md",
    ]


@pytest.mark.long  # tests/deliveries looks at every real sample, too
def test_real_samples_all_arrive(data: Path, tmp_path: Path) -> None:
    words = [str(data / "shards" / "*.tar")]
    check(report_of(counterpoise(tmp_path, "demo", "--json", *words)), 1336)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--samples", "2"], "2 samples cannot fill"), (["nowhere/*.tar"], "nowhere")],
)
def test_wrong_settings_are_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["demo", *words])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_make_demo_installs_what_a_user_installs(root: Path) -> None:
    # An outer make, which runs these tests, gives its settings to those below it.
    env = {"PATH": os.environ["PATH"]}
    said = [
        subprocess.run(
            ["make", "-n", target, "VENV=nowhere"],
            cwd=root,
            env=env,
            text=True,
            capture_output=True,
        ).stdout
        for target in ("demo", "test")
    ]
    assert said[0].splitlines()[-1] == "nowhere/bin/counterpoise demo"
    assert ["-e '.[dev]'" in each for each in said] == [False, True]
