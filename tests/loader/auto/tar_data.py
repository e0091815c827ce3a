"""Tar shards and transforms for tests of what samples in them are found to cost."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from counterpoise.workers.images.decode import image_size
from counterpoise.workers.sources.interface import Probe
from counterpoise.workers.tar.dataset import TarDataset

LENGTHS = np.random.default_rng(3).integers(1, 60, 40).tolist()


def write_shards(folder: Path, lengths: list[int] = LENGTHS) -> Path:
    """Write texts of some lengths, with a picture beside every third, to two shards."""
    for shard in range(2):
        with tarfile.open(folder / f"part-{shard}.tar", "w") as tar:
            for number, length in [*enumerate(lengths)][shard::2]:
                members = {"txt": b"x" * length}
                if number % 3 == 0:
                    file = io.BytesIO()
                    Image.new("RGB", (4 + number, 8)).save(file, "PNG")
                    members["png"] = file.getvalue()
                for name, body in members.items():
                    info = tarfile.TarInfo(f"{number:03}.{name}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))
    return folder


def tokens_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Make tokens, labels and the pixels of a picture; nothing says what they cost."""
    data = raw.get("png") or raw.get("jpg")
    size = image_size(data) if data else (0, 0)
    text = raw["txt"] if "txt" in raw else str(raw["json"])
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    labels = np.where(ids < 110, -100, ids)
    return {"input_ids": ids, "labels": labels, "pixels": np.zeros(size[0] * size[1], np.uint8)}


class Probing:
    """The same, with a probe: nothing is decoded to measure it."""

    decoded = 0

    def __call__(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        Probing.decoded += 1
        return tokens_of(raw)

    def probe(self, raw: Mapping[str, Any]) -> Probe:
        """Say what the sample will have, from headers."""
        found = tokens_of(raw)
        labels = int((found["labels"][1:] != -100).sum())
        cost = {"tokens": len(found["input_ids"]), "pixels": len(found["pixels"])}
        return Probe(raw["__key__"], {**cost, "label_tokens": labels})


def data() -> TarDataset:
    """Open what the environment says; `analyze` imports this by name."""
    return TarDataset(os.environ["SHARDS"], tokens_of)
