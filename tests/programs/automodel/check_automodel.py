"""Automodel's SFT recipe on two ranks: its own sampler, and ours by a subclass of the recipe."""

import shutil
from pathlib import Path

import pytest

from tests.programs import harness, tiny_model, trainers

HERE = Path(__file__).parent
PACKAGE = "tests.programs.automodel"
BEFORE = [f"{PACKAGE}.stand_in", f"{PACKAGE}.observe"]
SAMPLES = 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("automodel")
    tiny_model.write_model(folder / "model")
    tiny_model.write_conversations(folder / "train.jsonl", SAMPLES, 1)
    tiny_model.write_conversations(folder / "eval.jsonl", 16, 2)
    for file in ("balanced.py", "sft.yaml", "trial.py"):
        shutil.copy(HERE / file, folder)
    settings = (HERE / "sft.yaml").read_text()
    recipe = "TrainFinetuneRecipeForNextTokenPrediction"
    (folder / "balanced.yaml").write_text(settings.replace(recipe, "balanced.BalancedRecipe"))
    return folder


def train(folder: Path, settings: str, name: str) -> harness.Run:
    command = ["nemo_automodel.cli.app", settings, f"--checkpoint.checkpoint_dir={name}"]
    return harness.run_program(command, folder, name, before=BEFORE)


@pytest.fixture(scope="module")
def plain(folder: Path) -> harness.Run:
    return train(folder, "sft.yaml", "plain")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "balanced.yaml", "ours")


def test_the_training_is_the_same(plain: harness.Run, ours: harness.Run) -> None:
    harness.print_comparison("Automodel", plain, ours, waits="step")
    assert len(plain.steps) == 20
    harness.check_same_steps(plain, ours)
    harness.check_first_step(plain, ours)
    harness.check_epochs(ours, SAMPLES)
    assert ours.step_samples() == plain.step_samples()
    harness.check_evaluations(plain, ours)


def test_ranks_wait_less_for_each_other(plain: harness.Run, ours: harness.Run) -> None:
    assert ours.waiting(waits="step") < 0.05 < plain.waiting(waits="step")
    assert ours.time() < 0.7 * plain.time()


def test_a_checkpoint_in_mid_epoch_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    checkpoint = next((folder / "ours").glob("epoch_0_step_4*"))
    shutil.copytree(checkpoint, folder / "resumed" / checkpoint.name)
    resumed = train(folder, "balanced.yaml", "resumed")
    harness.check_resumed(ours, resumed, 5)


def test_the_trial_tells_what_is_gained(folder: Path, plain: harness.Run) -> None:
    trainers.check_trial(trainers.try_loader(folder, SAMPLES, accumulate=2), plain)
