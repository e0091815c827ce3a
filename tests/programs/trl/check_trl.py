"""TRL's SFT and DPO with our loader: make test-frameworks PROGRAM=trl."""

from pathlib import Path

import pytest

from tests.programs.trainers import (
    PROGRAMS,
    SAMPLES,
    SAVED,
    ResumedChecks,
    Runs,
    check_trial,
    run_watched,
    try_program,
    write_data,
)

PROGRAM = "trl"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_data(tmp_path_factory.mktemp(PROGRAM) / "data")
    script = (PROGRAMS / PROGRAM / "sft.py").read_text().replace("SFT", "DPO")
    (folder / "dpo.py").write_text(script.replace(".jsonl", "-pairs.jsonl"))
    return folder


def run_script(data: Path, script: str) -> Runs:
    """Run a script of TRL as it is, with attach_trainer(trainer), and that from a checkpoint."""
    command = ("torchrun", "--nproc-per-node", "2", f"{script}.py")
    plain = run_watched(command, data, f"{script}-plain", PROGRAM)
    ours = run_watched(command, data, f"{script}-ours", PROGRAM, BALANCED="1")
    saved = str(data.parent / f"{script}-ours" / "out" / f"checkpoint-{SAVED}")
    again = run_watched(
        (*command, saved), data, f"{script}-resumed", PROGRAM, begun=f"{script}-ours", BALANCED="1"
    )
    return Runs(plain, ours, again)


class TestSFT(ResumedChecks):
    name = "TRL 1.16.0 SFT"

    @pytest.fixture(scope="class")
    def runs(self, data: Path) -> Runs:
        return run_script(data, "sft")

    def test_the_trial_tells_what_is_gained(self, runs: Runs, data: Path) -> None:
        check_trial(try_program(PROGRAM, data), runs.plain)


class TestDPO(ResumedChecks):
    """A batch has two rows of each sample: chosen and rejected."""

    name = "TRL 1.16.0 DPO"
    samples = 2 * SAMPLES

    @pytest.fixture(scope="class")
    def runs(self, data: Path) -> Runs:
        return run_script(data, "dpo")
