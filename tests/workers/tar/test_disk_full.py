"""A full disk costs time, and nothing else: indexes and costs are done without."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.cache_files import replace_file

SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 4}
SAMPLES = 12


@pytest.fixture
def fill(monkeypatch):
    """Return a function after which every file that is kept is cut short by a full disk."""

    class Full:
        def __init__(self, handle):
            self.handle = handle

        def __enter__(self):
            return self

        def __exit__(self, *_):
            os.close(self.handle)

        def write(self, data):
            os.write(self.handle, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(os, "fdopen", lambda handle, _: Full(handle))


def everything(pattern, cache):
    dataset = TarDataset(pattern, VisionLanguage(**SMALL), cache=cache)
    return [dataset.probe(index) for index in range(SAMPLES)]


def test_samples_are_found_and_measured_all_the_same(tmp_path, fill):
    pattern = ensure_demo_data(tmp_path / "data", samples=SAMPLES, shards=2)
    first = everything(pattern, tmp_path / "first")
    fill()
    assert everything(pattern, tmp_path / "second") == first
    assert not list((tmp_path / "second").rglob(".*"))


def test_the_old_file_stays(tmp_path, fill):
    path = Path(tmp_path / "kept")
    path.write_bytes(b"old")
    fill()
    assert not replace_file(path, b"the new content")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
