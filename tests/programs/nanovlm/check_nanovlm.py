"""nanoVLM's train.py on two ranks: its own packing, and a balanced loader in its place."""

import random
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import PreTrainedTokenizerFast

import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's stand-in
from tests.programs import harness, tiny_model
from tests.programs.nanovlm import tiny

HERE = Path(__file__).parent
PACKAGE = "tests.programs.nanovlm"
SAMPLES, HELD_OUT = 166, 16


def tiles(batch: harness.Line) -> float:
    """Return the tiles of pictures in a microbatch: the work of the vision encoder."""
    return float(batch["tiles"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nanovlm")
    shutil.copytree(harness.need_source("nanoVLM"), folder / "nanoVLM")
    shutil.copy(HERE / "balanced.py", folder / "nanoVLM")
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_model.train_tokenizer(), **names)
    tokenizer.save_pretrained(folder / "tokenizer")
    draw = random.Random(1)
    rows = []
    for question, answer in tiny_model.conversations(SAMPLES, 1):
        sides = [draw.randrange(24, 97) for _ in range(2 * draw.choice((1, 1, 2)))]
        pictures = [
            Image.effect_noise(size, 60) for size in zip(sides[::2], sides[1::2], strict=True)
        ]
        answer_text = " ".join(answer["content"].split()[:60])
        texts = [{"user": question["content"], "assistant": answer_text}]
        rows.append({"images": pictures, "texts": texts})
    Dataset.from_list(rows).save_to_disk(folder / "data" / "shard_0")
    return folder


def train(folder: Path, script: str, name: str) -> harness.Run:
    command = [f"nanoVLM/{script}", "--train_dataset_path", "data", "--no_log_wandb"]
    variables = harness.add_to_path(folder / "nanoVLM")
    before = [f"{PACKAGE}.stand_in", f"{PACKAGE}.observe"]
    return harness.run_program(command, folder, name, before=before, variables=variables)


@pytest.fixture(scope="module")
def plain(folder: Path) -> harness.Run:
    return train(folder, "train.py", "plain")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "balanced.py", "ours")


def test_steps_rates_and_evaluations_are_the_same(plain: harness.Run, ours: harness.Run) -> None:
    harness.print_comparison("nanoVLM", plain, ours)
    waits = [f"{run.waiting(tiles):.1%}" for run in (plain, ours)]
    steps = [
        max(line["step"] for line in run.batches if not line["epoch"]) for run in (plain, ours)
    ]
    print(f"nanoVLM: waiting for tiles {waits}, the last step of an epoch {steps}")
    assert len(plain.steps) == 20
    harness.check_same_steps(plain, ours)
    harness.check_evaluations(plain, ours)


def test_an_epoch_has_each_sample_once(ours: harness.Run) -> None:
    harness.check_epochs(ours, SAMPLES - HELD_OUT)


def test_the_first_step_is_that_of_its_rows_on_one_process(
    folder: Path, ours: harness.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nanoVLM's own first step has other samples, so other ones are not compared."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "nanoVLM")
    config = import_module("models.config").VLMConfig(**tiny.MODEL)
    model = import_module("models.vision_language_model").VisionLanguageModel(config, False)
    saved = [torch.load(path) for path in sorted(folder.glob("ours-first-*.pt"))]
    model.load_state_dict(saved[0][0])
    losses, labels = [], []
    for batch in (batch for _, batches in saved for batch in batches):
        _, loss = model(
            batch["input_ids"], batch["images"], attention_mask=batch["attention_mask"],
            targets=batch["labels"],
        )  # fmt: skip
        losses.append(loss)
        labels.append(int((batch["labels"] != -100).sum()))
    mean = torch.stack(losses).mean()
    mean.backward()
    weights = torch.tensor(labels) / sum(labels)
    mean_of_rows, mean_of_tokens = mean.item(), (torch.stack(losses) @ weights).item()
    print(f"nanoVLM: loss of step 1 {mean_of_rows:.6g}, by tokens {mean_of_tokens:.6g}")
    assert ours.steps[0]["loss"] == pytest.approx(mean_of_rows, rel=1e-4)
    assert ours.gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.allclose(ours.gradients[name], parameter.grad, rtol=1e-4, atol=1e-6), name


def test_rows_are_fuller_and_ranks_wait_less(plain: harness.Run, ours: harness.Run) -> None:
    assert ours.padding() < plain.padding() / 2
    assert ours.waiting(tiles) < plain.waiting(tiles)


def test_the_forecast_is_what_the_tensors_say(ours: harness.Run) -> None:
    harness.check_forecast(ours, tiles)


def test_the_loader_goes_on_in_mid_epoch(folder: Path, ours: harness.Run) -> None:
    variables = harness.add_to_path(folder / "nanoVLM")
    resumed = harness.run_program(
        [f"{PACKAGE}.resume"], folder, "resumed", before=[f"{PACKAGE}.stand_in"],
        variables=variables,
    )  # fmt: skip
    harness.check_resumed(ours, resumed, 3)
