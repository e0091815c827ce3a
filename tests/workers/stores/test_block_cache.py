"""Blocks on disk: read once, bounded, and never believed when they are damaged."""

import random

import pytest

from counterpoise.workers.stores import block_cache
from counterpoise.workers.stores.block_cache import BlockCache

DATA = random.Random(1).randbytes(100_000)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_cache, "BLOCK", 1000)


class Fetch:
    def __init__(self):
        self.asked = []

    def __call__(self, span):
        self.asked.append(span)
        return DATA[slice(*span)]


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def read(cache, fetch, span, url="u", version="1"):
    found = cache.read(url, version, len(DATA), span, fetch)
    assert found == DATA[slice(*span)]


def test_a_block_is_fetched_once_for_all_processes(tmp_path):
    fetch = Fetch()
    for span in ((100, 200), (900, 2100), (0, 3000), (99_950, 100_000)):
        read(BlockCache(10**6, tmp_path), fetch, span)
    assert fetch.asked == [(0, 1000), (1000, 3000), (99_000, 100_000)]


def test_another_version_is_another_object(tmp_path):
    fetch, cache = Fetch(), BlockCache(10**6, tmp_path)
    for url, version in (("u", "1"), ("u", "2"), ("v", "1")):
        read(cache, fetch, (0, 10), url, version)
    assert len(fetch.asked) == 3


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 1004])
def test_a_damaged_block_is_fetched_again(tmp_path, damage):
    fetch, cache = Fetch(), BlockCache(10**6, tmp_path)
    read(cache, fetch, (0, 10))
    (block,) = [path for path in tmp_path.rglob("*-0") if path.is_file()]
    block.write_bytes(damage)
    read(cache, fetch, (0, 10))
    read(cache, fetch, (0, 10))
    assert len(fetch.asked) == 2


def test_the_folder_stays_within_its_bound_and_keeps_what_was_used_last(tmp_path):
    fetch, most = Fetch(), 20_000
    caches = [BlockCache(most, tmp_path) for _ in range(4)]
    for number in range(300):
        read(caches[number % 4], fetch, (1000 * (number % 100), 1000 * (number % 100) + 10))
        assert size_of(tmp_path) <= most
    fetch.asked.clear()
    read(caches[0], fetch, (99_000, 99_010))
    assert not fetch.asked


def test_a_full_disk_means_no_cache(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(block_cache, "replace_file", lambda *_: False)
    fetch, cache = Fetch(), BlockCache(10**6, tmp_path)
    for _ in range(3):
        read(cache, fetch, (0, 10))
    assert len(fetch.asked) == 3
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_made_means_no_cache(tmp_path):
    (tmp_path / "file").write_text("")
    fetch = Fetch()
    read(BlockCache(10**6, tmp_path / "file" / "below"), fetch, (0, 10))
