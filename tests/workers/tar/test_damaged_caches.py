"""Kept indexes and costs that are damaged in any way are made again, with one line in the log."""

import io
import random
import zipfile
from typing import Any

import numpy as np
import pytest

from counterpoise.workers import Probe, TarDataset
from counterpoise.workers.sources import cache_files
from counterpoise.workers.sources.cache_files import (
    DamagedFileError,
    identity,
    kept_path,
    read_arrays,
)
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.tar.index import scan

SAMPLES = 12


class Measured:
    """A transform with a probe whose costs are kept; `asked` counts the probes."""

    asked = 0

    def __call__(self, raw):
        return raw

    def probe(self, raw):
        self.asked += 1
        number = int(raw["__key__"])
        return Probe(raw["__key__"], {"tokens": number + 1, "label_tokens": 2 * number}, number)

    def fingerprint(self):
        return "measured"


@pytest.fixture
def path(shard):
    return shard("a.tar", {f"{n}.txt": b"x" * n for n in range(SAMPLES)})


def opened(path):
    """Return all that the shard's caches decide."""
    data = TarDataset(path, Measured())
    found = [(data.probe(n), data[n]) for n in range(len(data))]
    return found, data.fingerprint()


def caches(path):
    return [file for file in sorted(path.parent.iterdir()) if file != path]


def damaged(good, draw):
    """Return a damaged copy: a flipped bit, a cut, or bytes written over."""
    data, kind = bytearray(good), draw.randrange(4)
    at = draw.randrange(len(data))
    if kind < 2:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 2:
        del data[at:]
    else:
        data[at : at + draw.randrange(1, 40)] = draw.randbytes(draw.randrange(40))
    return bytes(data)


@pytest.mark.parametrize("count", [30, pytest.param(5000, marks=pytest.mark.long)])
def test_damage_changes_nothing_that_is_seen(path, count, caplog):
    draw = random.Random(count)
    wanted = opened(path)
    files = caches(path)
    assert [file.suffix for file in files] == [".costs", ".npz"]
    good = {file: file.read_bytes() for file in files}
    for _ in range(count):
        file = draw.choice(files)
        bad = damaged(good[file], draw)
        file.write_bytes(bad)
        caplog.clear()
        assert opened(path) == wanted
        told = [record for record in caplog.records if file.name in record.getMessage()]
        assert len(told) == 1 or bad == good[file]
        caplog.clear()
        assert opened(path) == wanted
        assert not caplog.records
        assert file.read_bytes() == good[file]


def sealed(about, arrays):
    """Return a file with a right checksum whatever is in it."""
    file = io.BytesIO()
    np.savez(file, stamp=np.array(about, np.int64), **arrays)
    return cache_files._seal(file.getvalue())


@pytest.mark.parametrize("suffix", [".npz", ".costs"])
@pytest.mark.parametrize("change", [{}, {"names": np.zeros(3)}, {"more": np.zeros(3)}])
def test_well_formed_arrays_that_are_no_index_or_costs_are_refused(path, suffix, change, caplog):
    wanted = opened(path)
    (kept,) = (file for file in caches(path) if file.suffix == suffix)
    arrays = cache_files.unpack_arrays(kept, kept.read_bytes())
    kept.write_bytes(sealed(arrays.pop("stamp"), {**arrays, **change} if change else {}))
    assert opened(path) == wanted
    assert [record.getMessage() for record in caplog.records] == [
        f"{kept} holds no {'index' if suffix == '.npz' else 'costs'} of this file: it is made again"
    ]


def test_an_index_that_says_anything_makes_nothing_be_allocated(path):
    kept = kept_path(path, "index.npz")
    for change in ({"size": 2**62}, {"offset": 2**62}):
        arrays = scan(path).to_arrays()
        arrays["places"] = arrays["places"].copy()
        arrays["places"][3, 2 if "size" in change else 1] = next(iter(change.values()))
        kept.write_bytes(sealed(identity(path), arrays))
        with pytest.raises(DataChangedError, match="ends before byte"):
            TarDataset(path)[3]
        assert not kept.exists()  # the next run makes it again


def boundless():
    """Return an npz file that says it has 32 TB, and has none."""
    header = io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (2**42,)}
    np.lib.format.write_array_header_1_0(header, shape)
    file = io.BytesIO()
    np.savez(file, stamp=np.zeros(2, np.int64))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("members.npy", header.getvalue())
    return cache_files._seal(file.getvalue())


def compressed():
    file = io.BytesIO()
    np.savez_compressed(file, stamp=np.zeros(2, np.int64), members=np.zeros(10**6))
    return cache_files._seal(file.getvalue())


@pytest.mark.parametrize("made", [boundless, compressed])
def test_a_file_may_not_ask_for_more_memory_than_it_has_bytes(tmp_path, made):
    (tmp_path / "x.npz").write_bytes(made())
    with pytest.raises(DamagedFileError, match=r"x\.npz holds no arrays"):
        read_arrays(tmp_path / "x.npz", (0, 0))


def test_a_file_of_another_version_is_made_again(path, caplog):
    wanted = opened(path)
    kept = kept_path(path, "index.npz")
    here = f"counterpoise {cache_files.FORMAT_VERSION} ".encode()
    newer = f"counterpoise {cache_files.FORMAT_VERSION + 1} ".encode()
    kept.write_bytes(kept.read_bytes().replace(here, newer))
    assert opened(path) == wanted
    columns: Any = scan(path).to_arrays()
    np.savez(kept, stamp=np.array([1, *identity(path)]), **columns)  # as before 0.2
    assert opened(path) == wanted
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{kept} is cut off, or of another version: it is made again"] * 2


def test_many_damaged_indexes_are_one_line(shard, caplog):
    paths = [
        shard(f"{name}.tar", {f"{name}{n}.txt": b"x" for n in range(SAMPLES)}) for name in "abc"
    ]
    TarDataset(paths)
    for path in paths[:2]:
        kept_path(path, "index.npz").write_bytes(b"PK")
    caplog.clear()
    TarDataset(paths)
    assert len(caplog.records) == 1
    assert "(2 of 3 indexes like it)" in caplog.text
