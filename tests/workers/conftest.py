"""Data that the tests make: pictures through Pillow, tar shards through tarfile."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.tars import write_tar

Picture = Callable[..., bytes]
Shard = Callable[..., Path]


@pytest.fixture(scope="session")
def picture() -> Picture:
    """A maker of image files: `picture(width, height, format, mode, seed, **save options)`."""

    def make(width=8, height=6, format="PNG", mode="RGB", seed=0, **options) -> bytes:  # noqa: A002
        bands = len(Image.new(mode, (1, 1)).getbands())
        levels = np.random.default_rng(seed).integers(0, 256, (height, width, bands), np.uint8)
        file = io.BytesIO()
        Image.frombytes(mode, (width, height), levels.tobytes()).save(file, format, **options)
        return file.getvalue()

    return make


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    """A maker of tar files: `shard("a.tar", {"key.jpg": bytes, "key.json": {...}})`."""

    def make(name: str, members: Mapping[str, object] | list, **options) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = members.items() if isinstance(members, Mapping) else members
        bodies = [
            (name, each if isinstance(each, bytes) else json.dumps(each).encode())
            for name, each in pairs
        ]
        return write_tar(path, bodies, **options)

    return make
