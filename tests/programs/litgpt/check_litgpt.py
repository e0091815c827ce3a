"""litgpt's full finetuning on two ranks: its JSON data module, and a subclass with our loader."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from litgpt import GPT, Config
from litgpt.utils import save_config

from tests.programs import harness, tiny_model, trainers

HERE = Path(__file__).parent
PACKAGE = "tests.programs.litgpt"
BEFORE = [f"{PACKAGE}.stand_in", f"{PACKAGE}.observe"]
SAMPLES = 160
ARGUMENTS = [
    "--devices", "2", "--precision", "32-true",
    "--data.json_path", "data",
    "--data.num_workers", "1", "--train.global_batch_size", "16", "--train.micro_batch_size", "4",
    "--train.epochs", "2", "--train.lr_warmup_steps", "2", "--train.save_interval", "5",
    "--eval.interval", "10", "--eval.max_iters", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("litgpt")
    model = folder / "model"
    model.mkdir()
    tiny_model.train_tokenizer().save(str(model / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(names))
    config = Config(
        name="tiny", block_size=1024, vocab_size=512, padded_vocab_size=512, n_layer=2, n_head=4,
        n_embd=64,
    )  # fmt: skip
    save_config(config, model)
    torch.manual_seed(0)
    torch.save(GPT(config).state_dict(), model / "lit_model.pth")
    (folder / "data").mkdir()
    for name, count, seed in (("train", SAMPLES, 1), ("val", 16, 2)):
        rows = tiny_model.conversations(count, seed)
        texts = [{"instruction": row[0]["content"], "output": row[1]["content"]} for row in rows]
        (folder / "data" / f"{name}.json").write_text(json.dumps(texts))
    for file in ("balanced.py", "trial.py"):
        shutil.copy(HERE / file, folder)
    return folder


def train(folder: Path, name: str, data: tuple[str, ...], *more: str) -> harness.Run:
    command = ["litgpt", "finetune_full", "model", *data, *ARGUMENTS, *more, "--out_dir", name]
    return harness.run_program(command, folder, name, before=BEFORE)


THEIRS = ("--data", "JSON")
OURS = ("--data", "balanced.BalancedJSON", "--data.accumulate", "2")


@pytest.fixture(scope="module")
def plain(folder: Path) -> harness.Run:
    return train(folder, "plain", THEIRS)


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "ours", OURS)


def test_the_training_is_the_same(plain: harness.Run, ours: harness.Run) -> None:
    harness.print_comparison("litgpt", plain, ours)  # FSDP meets in each microbatch
    assert len(plain.steps) == 20
    harness.check_same_steps(plain, ours)
    harness.check_epochs(ours, SAMPLES)
    assert ours.step_samples() == plain.step_samples()
    harness.check_evaluations(plain, ours)


def test_the_first_gradient_differs_as_means_of_other_microbatches_do(
    plain: harness.Run, ours: harness.Run
) -> None:
    both = [torch.cat([g.flatten() for g in run.gradients.values()]) for run in (plain, ours)]
    difference = (both[1] - both[0]).norm() / both[0].norm()
    norms = [f"{run.steps[0]['gradient_norm']:.5f}" for run in (plain, ours)]
    print(f"\nlitgpt: gradient of step 1 differs by {difference:.2%}, norms", " -> ".join(norms))
    assert 1e-4 < difference < 0.1


def test_means_of_single_samples_have_the_same_loss_and_gradient(folder: Path) -> None:
    options = ("--train.micro_batch_size", "1", "--train.max_steps", "1")
    plain = train(folder, "plain_1", THEIRS, *options)
    ours = train(folder, "ours_1", OURS, "--data.accumulate", "8", *options)
    harness.check_first_step(plain, ours)


def test_a_mean_over_a_microbatch_is_warned_of(ours: harness.Run) -> None:
    assert "a mean over a microbatch's tokens" in ours.log.replace("\n", " ")


def test_steps_are_shorter_and_ranks_wait_as_long_as_the_plan_says(
    plain: harness.Run, ours: harness.Run
) -> None:
    assert ours.time() < 0.9 * plain.time()
    assert ours.padding() < plain.padding() / 2
    harness.check_forecast(ours, harness.slots)


def test_a_checkpoint_in_mid_epoch_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    resumed = train(folder, "resumed", OURS, "--resume", "ours/step-000005/lit_model.pth")
    harness.check_resumed(ours, resumed, 5)
    losses = [line["loss"] for line in ours.steps[5:]]
    assert [line["loss"] for line in resumed.steps] == pytest.approx(losses, rel=1e-4)


def test_the_trial_tells_what_is_gained(folder: Path, plain: harness.Run) -> None:
    trainers.check_trial(trainers.try_loader(folder, SAMPLES, accumulate=2), plain)
