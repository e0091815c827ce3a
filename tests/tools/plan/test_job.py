"""`plan job`: keys as promised, files, clear errors."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from counterpoise import Balance
from counterpoise.sched.planners.job.schema import read_job
from counterpoise.tools.plan.job import command

KEYS = {"step_s", "mfu", "gain", "seconds", "memory_bytes", "lost", "tokens_per_s", "others"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("costs") / "costs.npz"
    np.savez(path, tokens=rng.integers(100, 4000, 300), tiles=rng.integers(0, 8, 300))
    return path


@pytest.fixture(scope="module")
def planned(data: Path) -> tuple[dict[str, Any], Path]:
    folder = data.parent
    report = run(
        "job", "--model", "internvit-6b+internlm2-20b", "--gpus", "8", "--parallel", "tp=4/8",
        "--data", str(data), "--samples-per-step", "16", "--out", str(folder / "job.json"),
    )  # fmt: skip
    return report, folder


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


def refused(*arguments: str) -> str:
    with pytest.raises((ValueError, click.BadParameter), match=r"\w") as found:
        CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    message = str(found.value)
    assert "\n" not in message
    return message


def test_the_report_has_the_promised_keys(planned: tuple[dict[str, Any], Path]) -> None:
    report, _ = planned
    assert set(report) >= KEYS
    assert set(report["lost"]) == {
        "waiting", "bubbles", "recomputation", "communication", "padding"
    }  # fmt: skip
    assert report["gain"] >= 1
    assert report["bound_s"] == report["step_s"]  # 8 GPUs are searched to the end
    assert max(report["memory_bytes"]) <= report["limit_bytes"]
    steps = [report["step_s"], *(one["step_s"] for one in report["others"])]
    assert len(steps) == 4
    assert steps == sorted(steps)


def test_the_file_is_the_plan(planned: tuple[dict[str, Any], Path]) -> None:
    report, folder = planned
    plan = read_job(folder / "job.json")
    assert plan.predicted.step_ns == round(report["step_s"] * 1e9)
    assert plan.layout.gpus == 8
    balance = Balance.load(folder / "job.json")
    assert balance.accumulate == plan.schedule.microbatches
    for one in plan.microbatches:
        assert all(one[name] <= most for name, most in balance.budgets.items())


JOB = ("job", "--model", "internvit-6b+internlm2-20b", "--gpus", "2", "--samples-per-step", "8")


def test_too_little_memory_names_the_rank_and_what_is_missing(data: Path) -> None:
    message = refused(*JOB, "--data", str(data), "--memory-gb", "20")
    assert "no plan on 2 GPUs fits into 20.0 GB" in message
    assert "GB on rank" in message
    assert "GB more than there are" in message


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--parallel", "cp=3"), "2 GPUs do not divide into CP 3"),
        (("--parallel", "tp=16"), "CP 1 x TP (16) x PP x DP have to"),
        (("--out", "nowhere/job.json"), "nowhere/job.json cannot be written"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--parallel", "tp=x"), "--parallel got 'tp=x'"),
        (("--parallel", "pp=2"), "with one of tp, cp"),
        (("--memory-gb", "0"), "--memory-gb 0.0"),
        (("--device", "z900"), "z900"),
    ],
)
def test_sizes_that_contradict_each_other(data: Path, more: tuple[str, ...], words: str) -> None:
    assert words in refused(*JOB, "--data", str(data), *more)


def test_an_unknown_architecture_says_which_fields_it_needs(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "unheard-of", "architectures": ["Unheard"]}))
    message = refused(
        "job", "--model", str(config), "--gpus", "8", "--samples-per-step", "8", "--data", str(data)
    )
    assert "hidden_size" in message


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "have no rows"),
        ([0, 0], "none of 8 samples has any tokens"),
        ([10**12, 5], "16,777,216 are the most"),
        ([[1, 2]], "column 'tokens' has shape (1, 2)"),
        ([-5, 5], "cost 'tokens' is -5"),
    ],
)
def test_data_that_cannot_be_planned_are_refused(
    tokens: list[Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "costs.npz"
    found = np.array(tokens, np.int64)
    np.savez(path, tokens=found, tiles=np.ones(len(found), np.int64))
    assert words in refused(*JOB, "--data", str(path))
    path.write_bytes(b"PK\x03\x04")
    assert "costs.npz cannot be read" in refused(*JOB, "--data", str(path))


def test_a_batch_need_not_divide(data: Path) -> None:
    report = run(*JOB[:-1], "7", "--data", str(data), "--memory-gb", "300")
    assert report["batch"] == 7
    assert report["step_s"] > 0


def test_data_without_what_the_model_counts_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "words.npz", tokens=np.arange(1, 9))
    message = refused(*JOB, "--data", str(tmp_path / "words.npz"))
    assert "tiles" in message
