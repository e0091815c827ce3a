"""The data of the delivery cases, made from seeds. Imported by name, here and in workers."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from tests.deliveries.library import Probe, SampleError, VisionLanguage
from tests.tars import write_tar

COUNT, MANY = 61, 5700
SHARDED, SHARDS = 40, 2
# Of the shards with broken samples: a header that says nothing, and pixels that end too early.
NO_HEADER, CUT_SHORT, NO_TEXT = {5, 18}, {7, 21, 30}, {11}
# Pillow's pictures are the recorded ones.
SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4, "resize": "pillow"}


class Records:
    """Samples of several kinds of fields, for torch's collate function; `broken` ones raise."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()) -> None:
        self.count, self.broken = count, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken:
            raise SampleError(str(index), "it does not decode")
        return {
            "tensor": torch.arange(6).view(2, 3) * index,
            "half": torch.full((2, 2), index, dtype=torch.bfloat16),
            "array": np.arange(4, dtype=np.float32) + index,
            "pair": (index, f"sample {index}"),
            "float": index / 7,
        }


class Drawn(Records):
    """Samples drawn from the generators of the process."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), np.random.rand(2), torch.rand(3)


class Stream(IterableDataset):
    """Worker w yields 7 + 4w pairs."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for number in range(7 + 4 * worker):
            yield torch.tensor([worker, number])


class Sized:
    """Samples of skewed sizes with a random part; what is drawn needs the global generators."""

    def __init__(self, broken: tuple[int, ...] = (), unreadable: tuple[int, ...] = ()) -> None:
        self.broken, self.unreadable = broken, unreadable

    def __len__(self) -> int:
        return COUNT

    def key(self, index: int) -> str:
        """Return a sample's name."""
        return f"k{index:04}"

    def probe(self, index: int) -> Probe:
        """Return a sample's cost."""
        if index in self.broken:
            raise SampleError(self.key(index), "its header is broken")
        return Probe(self.key(index), sizes(index), None)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.broken + self.unreadable:
            raise SampleError(self.key(index), "it does not decode")
        tiles, tokens = sizes(index)["tiles"], sizes(index)["tokens"]
        return {
            "input_ids": np.arange(tokens, dtype=np.int32) + index,
            "labels": labels(index),
            "pixel_values": np.random.randint(0, 256, (tiles, 3, 2, 2), np.uint8),
            "tiles_per_image": np.ones(tiles, np.int32),
            "noise": random.random() + float(torch.rand(())),
            "name": self.key(index),
        }


class Named(Sized):
    """Names only, with the sizes of sized samples: enough of them for several windows."""

    def __len__(self) -> int:
        return MANY

    def load(self, index: int, epoch: int, seed: int) -> dict[str, Any]:
        """Return a sample without any randomness."""
        return {"name": f"{self.key(index)} {epoch} {seed}"}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.load(index, 0, 0)


class Unmeasured(Sized):
    """The same samples without a way to measure them but to decode."""

    probe = None  # type: ignore[assignment]


def labels(index: int) -> np.ndarray:
    """Return the labels of a sized sample: some are left out at its beginning."""
    tokens = 3 + index * 104729 % 40
    found = np.arange(tokens, dtype=np.int32) + index
    found[: 1 + index % tokens] = -100
    return found


def sizes(index: int) -> dict[str, int]:
    """Return what a sized sample costs."""
    found = labels(index)
    counted = int(np.count_nonzero(found[1:] != -100))
    return {"tiles": index * 7919 % 5, "tokens": len(found), "label_tokens": counted}


def measure(sample: dict[str, Any]) -> dict[str, int]:
    """Return what a decoded sized sample costs."""
    return sizes(int(sample["name"][1:]))


def costs(count: int = COUNT) -> dict[str, list[int]]:
    """Return the costs of the first sized samples as columns."""
    rows = [sizes(index) for index in range(count)]
    return {name: [row[name] for row in rows] for name in ("tiles", "tokens", "label_tokens")}


class Rolled:
    """VisionLanguage with an augmentation that draws from the generator it is given."""

    def __init__(self, **arguments: Any) -> None:
        self.plain = VisionLanguage(**arguments)

    def probe(self, raw: dict[str, Any]) -> Probe:
        """Return a sample's cost."""
        return self.plain.probe(raw)

    def __call__(self, raw: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return a sample whose pixels are moved, and a number beside."""
        sample: dict[str, Any] = self.plain(raw)
        moved = np.roll(sample["pixel_values"], int(rng.integers(32)), axis=3)
        return sample | {"pixel_values": moved, "noise": float(rng.random())}


class GloballyRolled(Rolled):
    """The same with the generators of random, numpy and torch."""

    def __call__(self, raw: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        """Return a sample whose pixels are moved, and a number beside."""
        seed = random.getrandbits(20) + np.random.randint(1 << 20) + int(torch.randint(999, ()))
        return super().__call__(raw, np.random.default_rng(seed))


def write_shards(folder: Path, damaged: bool = False) -> None:
    """Write tar files of pictures and conversations; `damaged`: with some that are broken."""
    folder.mkdir()
    for shard in range(SHARDS):
        indexes = range(shard, SHARDED, SHARDS)
        members = (each for index in indexes for each in _members(index, damaged))
        write_tar(folder / f"{shard}.tar", members)


def _members(index: int, damaged: bool) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of a sample's members."""
    draw = random.Random(f"delivery {index}")
    pictures = draw.choice([0, 1, 1, 1, 2, 3])
    words = " ".join(draw.choice(["red", "wide", "grüne", "7", "river"]) for _ in range(index))
    said = [("human", "<image>\n" * pictures + "What is it?"), ("gpt", f"It is {words}.")]
    turns = [{"from": who, "value": value} for who, value in said * draw.choice([1, 1, 2])]
    for turn in turns[2:]:
        turn["value"] = turn["value"].replace("<image>\n", "")
    text = json.dumps({"conversations": turns}).encode()
    yield f"s{index:03}.json", b"{" if damaged and index in NO_TEXT else text
    for number in range(pictures):
        kind = draw.choice(["jpg", "png"])
        body = _picture(draw, kind)
        if damaged and index in NO_HEADER:
            body = b"no picture"
        if damaged and index in CUT_SHORT:
            body = body[: len(body) // 2]
        yield f"s{index:03}.img{number}.{kind}", body


def _picture(draw: random.Random, kind: str) -> bytes:
    """Return a picture of a few coarse colours."""
    width, height = draw.randrange(20, 160), draw.randrange(20, 120)
    coarse = Image.frombytes("RGB", (4, 4), draw.randbytes(48))
    file = io.BytesIO()
    image = coarse.resize((width, height), Image.Resampling.NEAREST)
    image.save(file, {"jpg": "JPEG", "png": "PNG"}[kind])
    return file.getvalue()
