"""ms-swift with our loader: make test-frameworks PROGRAM=ms_swift."""

from pathlib import Path

import pytest

from tests.programs.trainers import (
    SAVED,
    ResumedChecks,
    Runs,
    check_trial,
    count_lines,
    deal_batches,
    run_watched,
    try_program,
    write_data,
)

PROGRAM = "ms_swift"
PLAIN = ("swift", "sft", "train.yaml", "--ddp_backend", "gloo")
OURS = (*PLAIN, "--external_plugins", "balanced.py", "--callbacks", "balanced")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp(PROGRAM) / "data")


@pytest.fixture(scope="module")
def runs(data: Path) -> Runs:
    two = {"NPROC_PER_NODE": "2"}
    plain = run_watched(PLAIN, data, "plain", PROGRAM, **two)
    ours = run_watched(OURS, data, "ours", PROGRAM, **two)
    saved = data.parent / "ours" / "out" / f"checkpoint-{SAVED}"
    again = (*OURS, "--resume_from_checkpoint", str(saved))
    return Runs(plain, ours, run_watched(again, data, "resumed", PROGRAM, begun="ours", **two))


class TestSwift(ResumedChecks):
    name = "ms-swift 4.6.0"
    deals_batches = False  # but every second sample of an order

    def test_it_takes_six_lines(self) -> None:
        assert count_lines("ms_swift/balanced.py") <= 6

    def test_the_trial_tells_what_is_gained(self, runs: Runs, data: Path) -> None:
        check_trial(try_program(PROGRAM, data), deal_batches(runs.plain, 20))
