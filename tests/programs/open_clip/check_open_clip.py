"""open_clip's training on a webdataset: webdataset's loader, and ours around the same pipeline."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import webdataset
from PIL import Image

import counterpoise as cp
import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's stand-in
from tests.programs import harness, recording
from tests.programs.open_clip import stand_in  # noqa: F401  before open_clip's training

HERE = Path(__file__).parent
BEFORE = ["tests.programs.open_clip.stand_in", "tests.programs.open_clip.observe"]
SHARDS, SAMPLES = 8, 160
SHARD_NAMES = "shards/{0..7}.tar"
ARGUMENTS = [
    "--train-data", SHARD_NAMES, "--train-num-samples", str(SAMPLES),
    "--dataset-type", "webdataset",
    "--model", "tiny", "--batch-size", "8", "--workers", "1", "--epochs", "2", "--device", "cpu",
    "--precision", "fp32", "--warmup", "2", "--log-every-n-steps", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open_clip")
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / "shards" / f"{shard}.tar", "w") as tar:
            for number in range(shard, SAMPLES, SHARDS):
                picture = io.BytesIO()
                color = (number, 3 * number % 256, 7 * number % 256)
                Image.new("RGB", (40, 40), color).save(picture, "png")
                for name, content in (("png", picture.getvalue()), ("txt", caption(number))):
                    member = tarfile.TarInfo(f"{number:05}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def caption(number: int) -> bytes:
    return f"number {number}".encode()


def train(folder: Path, name: str, script: str, *arguments: str) -> harness.Run:
    command = [script, *ARGUMENTS, *arguments, "--logs", name, "--name", "run"]
    return harness.run_program(command, folder, name, before=BEFORE)


OURS = str(HERE / "plain_loader.py")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> harness.Run:
    return train(folder, "theirs", "open_clip_train.main")


@pytest.fixture(scope="module")
def ours(folder: Path) -> harness.Run:
    return train(folder, "ours", OURS)


def test_the_training_is_the_same(theirs: harness.Run, ours: harness.Run) -> None:
    assert len(theirs.steps) == 20
    harness.check_same_steps(theirs, ours)
    harness.check_first_step(theirs, ours)
    assert ours.rank_samples() == theirs.rank_samples()
    losses = [line["loss"] for line in theirs.steps]
    assert [line["loss"] for line in ours.steps] == pytest.approx(losses, rel=1e-4)


def test_two_epochs_have_each_sample_once_and_another_order(ours: harness.Run) -> None:
    harness.check_epochs(ours, SAMPLES)


def test_a_checkpoint_goes_on_exactly(folder: Path, ours: harness.Run) -> None:
    resumed = train(folder, "resumed", OURS, "--resume", "ours/run/checkpoints/epoch_1.pt")
    harness.check_resumed(ours, resumed, 10)
    losses = [line["loss"] for line in ours.steps[10:]]
    assert [line["loss"] for line in resumed.steps] == pytest.approx(losses, rel=1e-4)


def make_loader(folder: Path, kind: type, monkeypatch: pytest.MonkeyPatch, epoch: int = 0) -> Any:
    """Return the loader of open_clip's pipeline, of a class."""
    import open_clip  # not above: torchvision needs the stand-in
    from open_clip_train import data

    monkeypatch.setattr(webdataset, "WebLoader", kind)
    monkeypatch.chdir(folder)
    arguments = SimpleNamespace(
        train_data=SHARD_NAMES, train_num_samples=SAMPLES, train_data_upsampling_factors=None,
        seed=0, batch_size=8, world_size=1, workers=1,
    )  # fmt: skip
    torch.manual_seed(0)
    preprocess = open_clip.image_transform(32, is_train=False)
    tokenizer = open_clip.get_tokenizer("ViT-S-32-alt", context_length=16)
    return data.get_wds_dataset(arguments, preprocess, True, epoch, tokenizer=tokenizer).dataloader


def captions(loader: Any) -> Iterator[list[int]]:
    for _, texts in loader:
        yield [recording.fingerprint(row) for row in texts]


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_loop_goes_on_where_its_state_was_taken(
    folder: Path, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(captions(make_loader(folder, cp.DataLoader, monkeypatch, epoch)))
    assert len({*chain.from_iterable(whole)}) == SAMPLES
    loader = make_loader(folder, cp.DataLoader, monkeypatch, epoch)
    first = [batch for _, batch in zip(range(7), captions(loader), strict=False)]
    resumed = make_loader(folder, cp.DataLoader, monkeypatch, epoch)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert first + list(captions(resumed)) == whole


def test_samples_of_a_second_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(kind: type) -> Callable[[], int]:
        loader = make_loader(folder, kind, monkeypatch)

        def count_captions() -> int:
            count = sum(len(texts) for _, texts in loader)
            assert count == SAMPLES
            return count

        return count_captions

    harness.print_rates("open_clip", loop(webdataset.WebLoader), loop(cp.DataLoader))
