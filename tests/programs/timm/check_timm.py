"""timm's train.py on two ranks: torch's loader, and ours in its place."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import counterpoise as cp
import tests.programs.watched.sitecustomize  # noqa: F401  torchvision's stand-in
from tests.programs import harness, recording

HERE = Path(__file__).parent
SAMPLES, CLASSES = 160, 4
ARGUMENTS = [
    "--data-dir", "pictures", "--model", "test_vit", "--img-size", "32", "--num-classes",
    str(CLASSES), "--batch-size", "8", "--epochs", "2", "--device", "cpu", "--workers", "1",
    "--opt", "adamw", "--lr", "1e-3", "--warmup-epochs", "0", "--log-interval", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timm")
    for split in ("train", "validation"):
        for number in range(SAMPLES if split == "train" else 16):
            place = folder / "pictures" / split / f"class{number % CLASSES}"
            place.mkdir(parents=True, exist_ok=True)
            color = (number, 3 * number % 256, 7 * number % 256)
            Image.new("RGB", (40, 40), color).save(place / f"{number}.png")
    return folder


def train(folder: Path, name: str, *before: str) -> str:
    """Run train.py; return what its summary says of each epoch."""
    script = harness.need_source("pytorch-image-models/train.py")
    command = [*before, str(script), *ARGUMENTS, "--output", name, "--experiment", "run"]
    modules = ["tests.programs.timm.stand_in"]
    harness.run_program(command, folder, name, before=modules, notes=False)
    return (folder / name / "run" / "summary.csv").read_text()


def test_the_training_is_the_same(folder: Path) -> None:
    theirs = train(folder, "theirs")
    ours = train(folder, "ours", str(HERE / "plain_loader.py"))
    assert len(theirs.splitlines()) == 3  # names, and two epochs
    assert ours == theirs


def make_loader(
    folder: Path, kind: type, monkeypatch: pytest.MonkeyPatch, persistent_workers: bool = False
) -> Any:
    """Return timm's loader for training, of a class."""
    import timm.data  # not above: torchvision needs the stand-in

    monkeypatch.setattr(torch.utils.data, "DataLoader", kind)
    dataset = timm.data.create_dataset("", root=str(folder / "pictures"), split="train")
    torch.manual_seed(0)
    return timm.data.create_loader(
        dataset, 32, 8, is_training=True, no_aug=True, num_workers=1, use_prefetcher=False,
        persistent_workers=persistent_workers,
    )  # fmt: skip


def pictures(loader: Any) -> Iterator[list[int]]:
    for images, _ in loader:
        yield [recording.fingerprint(image.flatten()[:64]) for image in images]


def test_an_epoch_has_each_sample_once_and_goes_on_after_a_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(pictures(make_loader(folder, cp.DataLoader, monkeypatch)))
    samples = list(chain.from_iterable(whole))
    assert len(set(samples)) == len(samples) == SAMPLES
    loader = make_loader(folder, cp.DataLoader, monkeypatch)
    first = [batch for _, batch in zip(range(7), pictures(loader), strict=False)]
    resumed = make_loader(folder, cp.DataLoader, monkeypatch)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert first + list(pictures(resumed)) == whole


def test_samples_of_a_second_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(kind: type) -> Callable[[], int]:
        loader = make_loader(folder, kind, monkeypatch, persistent_workers=True)  # as train.py does

        def count_pictures() -> int:
            count = sum(len(images) for images, _ in loader)
            assert count == SAMPLES
            return count

        return count_pictures

    harness.print_rates("timm", loop(torch.utils.data.DataLoader), loop(cp.DataLoader))
