"""The demo delivers every sample in both runs, and balanced is better in every figure."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.cli import main
from tests.forking.popen import COMMAND
from tests.forking.popen import run as run_forked

pytestmark = pytest.mark.slow

FIELDS = {
    "delivered",
    "distinct_keys",
    "holes",
    "pad_ratio",
    "dist_ratio",
    "waiting",
    "work_max_over_mean",
    "exposed_wait_s",
    "loss_first",
    "loss_last",
}


def counterpoise(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return run_forked([COMMAND, *words], env=environment)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(report: dict[str, Any], samples: int) -> None:
    random, balanced = report["random"], report["balanced"]
    for run in (random, balanced):
        assert set(run) == FIELDS
        assert (run["delivered"], run["distinct_keys"], run["holes"]) == (samples, samples, 0)
        assert run["loss_last"] < run["loss_first"]
    assert balanced["pad_ratio"] < random["pad_ratio"]
    assert balanced["dist_ratio"]["tiles"] < random["dist_ratio"]["tiles"]
    assert balanced["dist_ratio"]["tokens"] < random["dist_ratio"]["tokens"]
    assert balanced["waiting"] < random["waiting"]
    assert balanced["work_max_over_mean"] < random["work_max_over_mean"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    # 100 samples in steps of 32: the last step is not full.
    words = ["--samples", "100", "--samples-per-step", "32", "--batch-size", "2", "--workers", "1"]
    return counterpoise(tmp_path_factory.mktemp("cache"), "demo", "--json", *words)


def test_every_sample_arrives_and_balanced_is_better(
    run: subprocess.CompletedProcess[str],
) -> None:
    check(report_of(run), 100)


def test_both_runs_learn_the_same(run: subprocess.CompletedProcess[str]) -> None:
    report = report_of(run)
    for name in ("loss_first", "loss_last"):
        assert report["random"][name] == pytest.approx(report["balanced"][name], rel=1e-2)


def test_only_the_report_goes_to_standard_output(run: subprocess.CompletedProcess[str]) -> None:
    assert len(run.stdout.splitlines()) == 1
    assert "samples/s" in run.stderr


def test_without_json_a_table_compares_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--samples", "32", "--samples-per-step", "32", "--workers", "1"])
    assert not ended.value.code
    table = capfd.readouterr().out
    for title in ("random", "balanced", "padding ratio", "DistRatio of tiles", "max / mean"):
        assert title in table


@pytest.mark.long  # tests/loader/test_balanced.py looks at every real sample, too
def test_real_samples_all_arrive(data: Path, tmp_path: Path) -> None:
    words = ["--data", str(data / "shards" / "*.tar"), "--text-limit", "64", "--width", "32"]
    check(report_of(counterpoise(tmp_path, "demo", "--json", *words)), 1336)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples-per-step", "20"], "8 ranks x 4 samples or a multiple"),
        (["--samples", "2"], "2 samples cannot fill"),
        (["--data", "nowhere/*.tar"], "nowhere"),
        (["--tile-size", "30"], "patches"),
    ],
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
