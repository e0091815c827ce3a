"""LLaMA-Factory with our loader: make test-frameworks PROGRAM=llamafactory."""

from pathlib import Path

import pytest

from tests.programs.trainers import (
    SAVED,
    ResumedChecks,
    Runs,
    check_trial,
    count_lines,
    run_watched,
    try_program,
    write_data,
)

PROGRAM = "llamafactory"
OURS = ("torchrun", "--nproc-per-node", "2", "train.py", "train.yaml")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp(PROGRAM) / "data")


@pytest.fixture(scope="module")
def runs(data: Path) -> Runs:
    plain = run_watched(
        ("llamafactory-cli", "train", "train.yaml"), data, "plain", PROGRAM,
        FORCE_TORCHRUN="1", NPROC_PER_NODE="2",
    )  # fmt: skip
    ours = run_watched(OURS, data, "ours", PROGRAM)
    saved = data.parent / "ours" / "out" / f"checkpoint-{SAVED}"
    again = (*OURS, f"resume_from_checkpoint={saved}")
    return Runs(plain, ours, run_watched(again, data, "resumed", PROGRAM, begun="ours"))


class TestLlamaFactory(ResumedChecks):
    name = "LLaMA-Factory 0.9.5"

    def test_it_takes_six_lines(self) -> None:
        assert count_lines("llamafactory/train.py") <= 6

    def test_the_trial_tells_what_is_gained(self, runs: Runs, data: Path) -> None:
        check_trial(try_program(PROGRAM, data), runs.plain)
