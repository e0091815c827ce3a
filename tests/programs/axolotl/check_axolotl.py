"""Axolotl with our loader: make test-frameworks PROGRAM=axolotl."""

from pathlib import Path

import pytest

from tests.programs.harness import Run
from tests.programs.trainers import (
    PROGRAMS,
    SAVED,
    ResumedChecks,
    Runs,
    TrainerChecks,
    check_trial,
    count_lines,
    run_watched,
    try_program,
    write_data,
)

PROGRAM = "axolotl"
TWO_RANKS = ("--", "--nproc_per_node", "2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp(PROGRAM) / "data")


def run_axolotl(data: Path, name: str, *plugins: str, more: str = "", begun: str = "") -> Run:
    """Run Axolotl on two CPU ranks with plugins, and more lines in its yaml."""
    text = (PROGRAMS / PROGRAM / "train.yaml").read_text()
    settings = f"{text}plugins: [{', '.join(('on_cpu.OnCpu', *plugins))}]\n{more}"
    (data / f"{name}.yaml").write_text(settings)
    command = ("axolotl", "train", str(data / f"{name}.yaml"), "--launcher", "torchrun", *TWO_RANKS)
    variables = {"ACCELERATE_USE_CPU": "true", "AXOLOTL_DO_NOT_TRACK": "1"}
    return run_watched(command, data, name, PROGRAM, begun=begun, **variables)


class TestAxolotl(TrainerChecks):
    """As it is: its loss is a mean of microbatches' means, so counts are equal, with a warning."""

    name = "Axolotl 0.19.0"
    losses_agree = False

    @pytest.fixture(scope="class")
    def runs(self, data: Path) -> Runs:
        plain = run_axolotl(data, "plain")
        return Runs(plain, run_axolotl(data, "ours", "balanced.Balanced"))

    def test_it_takes_six_lines(self) -> None:
        assert count_lines("axolotl/balanced.py") <= 6

    def test_the_trial_tells_what_is_gained(self, runs: Runs, data: Path) -> None:
        check_trial(try_program(PROGRAM, data), runs.plain)


class TestAxolotlByTokens(ResumedChecks):
    """With its loss divided by the tokens of the step, which one more line turns on."""

    name = "Axolotl 0.19.0, loss by tokens"

    @pytest.fixture(scope="class")
    def runs(self, data: Path) -> Runs:
        plain = run_axolotl(data, "tokens", "on_cpu.TokenLoss")
        ours = run_axolotl(data, "balanced", "balanced_tokens.Balanced")
        saved = data.parent / "balanced" / "out" / f"checkpoint-{SAVED}"
        more = f"resume_from_checkpoint: {saved}\n"
        resumed = run_axolotl(
            data, "resumed", "balanced_tokens.Balanced", more=more, begun="balanced"
        )
        return Runs(plain, ours, resumed)

    def test_it_takes_six_lines(self) -> None:
        assert count_lines("axolotl/balanced_tokens.py") <= 6
