"""Every sample of an epoch arrives once, with the very payload that the dataset has for it."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.loader import DataLoader
from counterpoise.tools.demo.command import RUNS, make_loader
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.transform import DemoSettings


def digest(input_ids: Any, tiles: Any) -> str:
    content = np.ascontiguousarray(input_ids, np.int32), np.ascontiguousarray(tiles, np.uint8)
    return hashlib.sha256(b"".join(array.tobytes() for array in content)).hexdigest()


def rows_of(batch: dict[str, Any]) -> Iterator[Any]:
    """The tokens of every sample of a padded or packed batch."""
    if "cu_seq_lens" in batch:
        for start, stop in pairwise(batch["cu_seq_lens"].tolist()):
            yield batch["input_ids"][0, start:stop]
    else:
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            yield row[: int(mask.sum())]


def tiles_of(batch: dict[str, Any]) -> Iterator[Any]:
    """The tiles of every sample."""
    images = np.cumsum([0, *batch["images_per_sample"].tolist()])
    tiles = np.cumsum([0, *batch["tiles_per_image"].tolist()])
    for first, last in pairwise(images):
        yield batch["pixel_values"][tiles[first] : tiles[last]]


def delivered(loader: DataLoader) -> Counter[tuple[str, str]]:
    """How often each (key, digest of its payload) came in an epoch."""
    found: Counter[tuple[str, str]] = Counter()
    for step in loader.steps():
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            if not info.empty:
                samples = zip(info.keys, rows_of(batch), tiles_of(batch), strict=True)
                found.update((key, digest(ids, tiles)) for key, ids, tiles in samples)
    return found


def expected(dataset: Any) -> Counter[tuple[str, str]]:
    samples = ((dataset.key(k), dataset[k]) for k in range(len(dataset)))
    return Counter((key, digest(s["input_ids"], s["pixel_values"])) for key, s in samples)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("random", 0),
        ("balanced", 2),
        pytest.param("random", 2, marks=pytest.mark.long),
        pytest.param("balanced", 0, marks=pytest.mark.long),
    ],
)
def test_every_made_sample_arrives_once(name: str, workers: int, tmp_path: Path) -> None:
    shards = ensure_demo_data(tmp_path, samples=100, shards=3)
    loader = make_loader(name, DemoSettings(shards, workers=workers))
    assert delivered(loader) == expected(loader.dataset)
    loader.close()


@pytest.mark.parametrize("name", RUNS)
def test_infos_count_what_the_tensors_hold(name: str, tmp_path: Path) -> None:
    loader = make_loader(name, DemoSettings(ensure_demo_data(tmp_path, samples=100), workers=0))
    for step in loader.steps():
        labels = [int((batch["labels"] != -100).sum()) for batch in step.microbatches]
        assert [info.label_tokens for info in step.infos] == labels
        assert {info.step_label_tokens for info in step.infos} == {sum(labels)}
        assert {info.step_samples for info in step.infos} == {sum(i.samples for i in step.infos)}
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            tiles = len(batch["pixel_values"])
            assert (info.images, info.costs["tiles"]) == (tiles > 0, tiles)


@pytest.mark.long  # tests/loader/test_balanced.py looks at every real sample, too
@pytest.mark.parametrize("name", RUNS)
def test_every_real_sample_arrives_once(name: str, data: Path) -> None:
    loader = make_loader(name, DemoSettings(str(data / "shards" / "*.tar")))
    found = delivered(loader)
    assert found == expected(loader.dataset)
    assert found.total() == len(found) == 1336
    loader.close()
