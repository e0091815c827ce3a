"""Data sets that the tests name on the command line."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

import counterpoise as cp
from counterpoise.workers import Probe, SampleError, VisionLanguage

_drawn = itertools.count()


class Fields:
    """Samples with a field of each kind that a shard can hold."""

    def __init__(self, size: int = 9) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        level = np.random.default_rng(index).integers(0, 256, (3 + index, 5, 3), np.uint8)
        return {
            "mp3": b"\xff\xd8" + bytes([index]),
            "picture": Image.fromarray(level),
            "ids": np.arange(index, dtype=np.int32),
            "words": ["né", index, {"deep": [None, 1.5], "half of a pair": "\ud83d"}],
            "caption": f"number {index}",
            "label": np.int64(index),
            "cls": index,
            "__url__": "nowhere",
        }


class Broken(Fields):
    """Samples of which some cannot be used, each for another reason."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        found = super().__getitem__(index)
        if index == 1:
            raise SampleError("one", "no such picture")
        if index == 4:
            raise KeyError("width")
        if index == 6:
            found["words"] = object()
        if index == 8:
            found["weights.pt"] = b"x"
        return found


class Named(Fields):
    """Samples with names of their own."""

    names = ("a.b", "a%2Ec", "dir.x/a.jpg", "", "dir/", "__x__", "__x__/y", "100%", "語")

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"__key__": self.names[index], "txt": str(index)}

    def key(self, index: int) -> str:
        return self.names[index]


class Twins(Named):
    names = ("a", "b", "c", "d", "e", "f", "c", "h", "i")


class Drawn(Fields):
    """Samples that are others each time."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"cls": next(_drawn)}


class Tuples(Fields):
    def __getitem__(self, index: int) -> Any:
        return (index,)


def mixed() -> cp.Mixture:
    return cp.Mixture({"a": (Fields(), 1), "b": (Fields(), 1)}, epoch=4)


class Many(Fields):
    """Enough samples for some shards, small and fast."""

    def __init__(self) -> None:
        super().__init__(23)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes(index * 100), "cls": index}


class Counting(VisionLanguage):
    """The ready transform, which counts how often it is asked what a sample costs."""

    probed = 0

    def __init__(self) -> None:
        super().__init__(tile_size=32, max_tiles=6, tokens_per_tile=4)

    def probe(self, raw: Mapping[str, Any]) -> Probe:
        Counting.probed += 1
        return super().probe(raw)


def silent(raw: Any) -> Any:
    """A transform that does not say what samples cost."""
    return raw
