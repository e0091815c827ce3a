"""Dead letters name the shard, are whole lines, and never end a run that is to go on."""

import errno
import os
from typing import Any

import pytest

from counterpoise import OnError
from counterpoise.loader import DataLoader
from counterpoise.workers import SampleError, TarDataset
from counterpoise.workers.sources.dead_letters import append_letter, read_letters
from counterpoise.workers.sources.failures import SkippedSample
from counterpoise.workers.sources.interface import source_name

LETTERS = [SkippedSample(f"k{n}", "no text", "data", "a.tar") for n in range(4)]
PLAIN: dict[str, Any] = {"num_workers": 0}
BALANCED: dict[str, Any] = {"balance": "balanced", "shuffle": False}
KINDS = [PLAIN, {"num_workers": 1}, BALANCED, BALANCED | {"num_workers": 1}]


@pytest.fixture
def shards(shard):
    """Two shards of four samples, of which the second in each has broken JSON."""
    for name in "ab":
        members = {f"{name}{n}.json": b"{" if n == 1 else b"{}" for n in range(4)}
        folder = shard(f"{name}.tar", members).parent
    return folder


def skipping(shards, path, given):
    data = TarDataset([shards / "a.tar", shards / "b.tar"])
    keys = [each["__key__"] for each in _all(data, path, given)]
    assert sorted(keys) == ["a0", "a2", "a3", "b0", "b2", "b3"]


def _all(data, path, given):
    loader = DataLoader(data, collate_fn=list, on_error=OnError("skip", dead_letter=path), **given)
    found = [each for batch in loader for each in batch]
    assert loader.left_out == 2
    loader.close()
    return found


@pytest.mark.parametrize("given", KINDS)
def test_the_shard_is_named_in_the_letter(shards, given):
    path = shards / "letters"
    skipping(shards, str(path), given)
    letters = sorted(read_letters(path), key=lambda letter: letter.key)
    assert [(letter.key, letter.source) for letter in letters] == [
        ("a1", str(shards / "a.tar")),
        ("b1", str(shards / "b.tar")),
    ]


def test_the_shard_is_named_in_the_error(shards):
    data = TarDataset(shards)
    for work in (data.raw, data.load, data.probe):
        with pytest.raises(SampleError, match=rf"sample 'b1' of {shards}/b\.tar: json"):
            work(5)


def test_the_shard_is_named_where_the_transform_complains(shards):
    def complain(raw):
        raise SampleError(raw["__key__"], "too dark")

    data = TarDataset(shards, complain)
    with pytest.raises(SampleError, match=rf"sample 'b0' of {shards}/b\.tar: too dark"):
        data.load(4)


def test_the_shard_is_named_where_the_run_ends(shards):
    loader = DataLoader(TarDataset(shards), collate_fn=list, **BALANCED)
    with pytest.raises(RuntimeError, match=rf"sample 'a1' of {shards}/a\.tar: json"):
        list(loader)


@pytest.mark.parametrize("given", KINDS)
def test_a_full_disk_does_not_end_a_run_that_leaves_samples_out(shards, given, caplog, monkeypatch):
    write = os.write

    def full(handle, data):
        if b'"reason"' in bytes(data) and b'"kind"' in bytes(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    path = shards / "letters"
    monkeypatch.setattr(os, "write", full)
    skipping(shards, str(path), given)
    told = [each.getMessage() for each in caplog.records if "letters" in each.getMessage()]
    assert len(told) == 2
    assert all("No space left on device" in line and '"kind": "data"' in line for line in told)


def test_a_line_that_is_cut_short_spoils_no_other(tmp_path, monkeypatch):
    path, write = tmp_path / "letters", os.write
    append_letter(path, LETTERS[0])

    def cut(handle, data):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:-9])

    with monkeypatch.context() as full:
        full.setattr(os, "write", cut)
        with pytest.raises(OSError, match="No space"):
            append_letter(path, LETTERS[1])
    append_letter(path, LETTERS[2])
    with path.open("ab") as file:
        file.write(b'\n[1]\n{"key": 7}\n\xff\n{"key": "torn')
    append_letter(path, LETTERS[3])
    assert read_letters(path) == [LETTERS[0], LETTERS[2], LETTERS[3]]


@pytest.mark.parametrize("given", [{}, BALANCED])
@pytest.mark.parametrize("wrong", ["none/letters", "", "."])
def test_a_path_that_cannot_be_written_is_refused_at_construction(tmp_path, given, wrong):
    path = f"{tmp_path}/{wrong}" if wrong else wrong
    with pytest.raises(ValueError, match=r"dead_letter='.*' cannot be written \(.*\): give the"):
        DataLoader([1, 2, 3], on_error=OnError("skip", dead_letter=path), **given)


def test_a_path_object_will_do(tmp_path, shards):
    skipping(shards, tmp_path / "letters", PLAIN)
    assert len(read_letters(tmp_path / "letters")) == 2


def test_several_shards_are_named_as_text(shards):
    data = TarDataset([shards / "a.tar", shards / "b.tar"])
    assert source_name(data) == f"{shards}/a.tar, {shards}/b.tar"
