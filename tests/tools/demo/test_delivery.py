"""In each run every sample arrives once, with the very payload that the dataset has for it."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.tools.demo.command import microbatches
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.train import DemoMicrobatch
from counterpoise.tools.demo.transform import transform
from counterpoise.workers.sources.registry import open_data


def digest(input_ids: Any, tiles: Any) -> str:
    content = np.ascontiguousarray(input_ids, np.int32), np.ascontiguousarray(tiles, np.uint8)
    return hashlib.sha256(b"".join(array.tobytes() for array in content)).hexdigest()


def rows_of(batch: Mapping[str, Any]) -> Iterator[Any]:
    """The tokens of every sample of a padded or packed batch."""
    if "cu_seq_lens" in batch:
        for start, stop in pairwise(batch["cu_seq_lens"].tolist()):
            yield batch["input_ids"][0, start:stop]
    else:
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            yield row[: int(mask.sum())]


def tiles_of(batch: Mapping[str, Any]) -> Iterator[Any]:
    """The tiles of every sample."""
    images = np.cumsum([0, *batch["images_per_sample"].tolist()])
    tiles = np.cumsum([0, *batch["tiles_per_image"].tolist()])
    for first, last in pairwise(images):
        yield batch["pixel_values"][tiles[first] : tiles[last]]


def delivered(found: Iterable[DemoMicrobatch]) -> dict[int, Counter[str]]:
    """The digests of the payloads in each step."""
    steps: dict[int, Counter[str]] = {}
    for each in found:
        samples = zip(rows_of(each.batch), tiles_of(each.batch), strict=True)
        steps.setdefault(each.step, Counter()).update(digest(*sample) for sample in samples)
    return steps


def test_all_runs_get_every_sample_once_and_in_the_same_steps(tmp_path: Path) -> None:
    shards = ensure_demo_data(tmp_path, samples=100, shards=3)
    dataset = open_data(shards, transform)
    samples = (dataset[k] for k in range(len(dataset)))
    expected = Counter(digest(each["input_ids"], each["pixel_values"]) for each in samples)
    found = {
        (name, workers): delivered(microbatches(name, shards, workers))
        for name, workers in (("torch", 0), ("ours", 2), ("balanced", 0), ("balanced", 2))
    }
    for steps in found.values():
        assert sum(steps.values(), Counter()) == expected
        assert steps == found["torch", 0]
