"""torchtitan's trainer on two ranks: its loader of chats, and ours by --override.imports."""

import json
import shutil
from pathlib import Path

import pytest

from tests.programs import harness, tiny_model

HERE = Path(__file__).parent
PACKAGE = "tests.programs.torchtitan"
BEFORE = [f"{PACKAGE}.stand_in", f"{PACKAGE}.observe"]
SAMPLES, STEP, LENGTH = 250, 25, 512
ARGUMENTS = [
    "--module", "llama3", "--config", "sft_debugmodel", "--hf_assets_path", "model",
    "--training.seq_len", str(LENGTH), "--training.local_batch_size", "1",
    "--training.global_batch_size", "4", "--training.disable_cuda_graphs",
    "--parallelism.spmd_backend", "partial_dtensor", "--debug.seed", "0",
    "--training.mixed_precision_param", "float32",
]  # fmt: skip
VARIABLES = {"STEPS_OF_EPOCH": str(SAMPLES // STEP)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchtitan")
    model = folder / "model"
    model.mkdir()
    tiny_model.train_tokenizer().save(str(model / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": tiny_model.CHATML}
    (model / "tokenizer_config.json").write_text(json.dumps(names))
    data = folder / "tests" / "assets" / "sft_test" / "data.json"  # where the config has it
    data.parent.mkdir(parents=True)
    rows = tiny_model.conversations(SAMPLES, 1)
    texts = [{"question": row[0]["content"], "answer": row[1]["content"]} for row in rows]
    data.write_text("\n".join(map(json.dumps, texts)) + "\n")
    shutil.copy(HERE / "my_data.py", folder)
    return folder


def train(folder: Path, name: str, loader: str = "", steps: int = 20, *more: str) -> harness.Run:
    """Run torchtitan with its own loader, or with that which a function makes."""
    command = ["torchtitan.train", *ARGUMENTS, "--dump_folder", name, *more]
    command += ["--training.steps", str(steps)]
    if loader:
        adapter = "counterpoise.loader.adapters.torchtitan.dataloader"
        command += ["--override.imports", f'{adapter}={{"loader": "{loader}:make_loader"}}']
    return harness.run_program(command, folder, name, before=BEFORE, variables=VARIABLES)


CHECKPOINTS = ("--checkpoint.enable", "--checkpoint.interval", "5")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> harness.Run:
    return train(folder, "theirs")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "ours", "my_data", 20, *CHECKPOINTS)


def test_steps_rates_and_rows_are_those_of_its_loader(
    theirs: harness.Run, ours: harness.Run
) -> None:
    harness.print_comparison("torchtitan", theirs, ours)
    waits = [f"{run.waiting(harness.tokens):.1%}" for run in (theirs, ours)]
    print("waiting by tokens without padding:", " -> ".join(waits), "plan:", ours.plans[-1])
    assert len(theirs.steps) == 20
    assert [line["step"] for line in ours.steps] == [line["step"] for line in theirs.steps]
    rates = [line["lr"] for line in theirs.steps]
    assert [line["lr"] for line in ours.steps] == pytest.approx(rates)
    assert {batch["slots"] for batch in ours.batches + theirs.batches} == {LENGTH}
    assert len(ours.batches) == len(theirs.batches)


def test_two_epochs_have_each_sample_once(ours: harness.Run) -> None:
    harness.check_epochs(ours, SAMPLES)
    assert ours.steps[-1]["loss"] < ours.steps[0]["loss"] / 2


def test_a_step_of_the_same_samples_has_the_same_loss_and_gradient(
    folder: Path, theirs: harness.Run
) -> None:
    (folder / "first_step.json").write_text(json.dumps(theirs.step_samples()[0]))
    same = train(folder, "same_step", "tests.programs.torchtitan.first_step", 1)
    harness.check_first_step(theirs, same)


def test_ranks_wait_less_than_with_its_loader_and_as_the_plan_says(
    theirs: harness.Run, ours: harness.Run
) -> None:
    harness.check_forecast(ours, harness.tokens)
    assert ours.waiting(harness.tokens) < theirs.waiting(harness.tokens) / 3


def test_a_checkpoint_in_mid_epoch_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    step = "checkpoint/step-5"
    shutil.copytree(folder / "ours" / step, folder / "resumed" / step)
    resumed = train(folder, "resumed", "my_data", 20, *CHECKPOINTS)
    harness.check_resumed(ours, resumed, 5)
    losses = [line["loss"] for line in ours.steps[5:]]
    assert [line["loss"] for line in resumed.steps] == pytest.approx(losses, rel=1e-4)
