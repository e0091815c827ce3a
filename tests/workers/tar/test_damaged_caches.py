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
from counterpoise.workers.tar.index import _packed, open_index, scan

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


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.long)])
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
    return cache_files._sealed(file.getvalue())


def wrong_arrays(path):
    """Yield arrays that are well formed and are no index of the shard."""
    good = _packed(scan(path))
    far = good["members"].copy()
    far[3, 1] = 2**62
    kinds = good["members"].copy()
    kinds[0, 0] = 9
    steps = good["name_ends"].copy()
    steps[[1, 2]] = steps[[2, 1]] + [0, 5]
    yield good | {"members": far}
    yield good | {"members": kinds}
    yield good | {"members": -good["members"]}
    yield good | {"members": good["members"][:, :2].copy()}
    yield good | {"members": good["members"].astype(float)}
    yield good | {"name_ends": steps}
    yield good | {"name_ends": good["name_ends"].astype("<U4")}
    yield good | {"member_ends": good["member_ends"][:-1]}
    yield good | {"names": np.frombuffer(b"\xff" * len(good["names"]), np.uint8)}
    yield {name: array for name, array in good.items() if name != "extensions"}
    yield {}


def test_well_formed_arrays_that_are_no_index_of_the_shard_are_refused(path, caplog):
    wanted = scan(path).digest
    kept = kept_path(path, "index.npz")
    for arrays in wrong_arrays(path):
        kept.write_bytes(sealed(identity(path), arrays))
        caplog.clear()
        assert open_index(path).digest == wanted
        assert [record.getMessage() for record in caplog.records] == [
            f"{kept} holds no index of this shard: it is made again"
        ]


def test_an_index_cut_inside_a_letter_is_refused(shard):
    path = shard("a.tar", {f"é{n}.txt": b"x" for n in range(SAMPLES)})
    good = _packed(scan(path))
    ends = good["name_ends"].copy()
    ends[0] += 1
    kept_path(path, "index.npz").write_bytes(sealed(identity(path), good | {"name_ends": ends}))
    assert open_index(path).key(1) == "é1"


def boundless():
    """Return an npz file that says it has 32 TB, and has none."""
    header = io.BytesIO()
    shape = {"descr": "<i8", "fortran_order": False, "shape": (2**42,)}
    np.lib.format.write_array_header_1_0(header, shape)
    file = io.BytesIO()
    np.savez(file, stamp=np.zeros(2, np.int64))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("members.npy", header.getvalue())
    return cache_files._sealed(file.getvalue())


def compressed():
    file = io.BytesIO()
    np.savez_compressed(file, stamp=np.zeros(2, np.int64), members=np.zeros(10**6))
    return cache_files._sealed(file.getvalue())


@pytest.mark.parametrize("made", [boundless, compressed])
def test_a_file_may_not_ask_for_more_memory_than_it_has_bytes(tmp_path, made):
    (tmp_path / "x.npz").write_bytes(made())
    with pytest.raises(DamagedFileError, match=r"x\.npz holds no arrays"):
        read_arrays(tmp_path / "x.npz", (0, 0))


def test_a_file_of_another_version_is_made_again(path, caplog):
    wanted = opened(path)
    kept = kept_path(path, "index.npz")
    here = f"counterpoise {cache_files.FORMAT} ".encode()
    newer = f"counterpoise {cache_files.FORMAT + 1} ".encode()
    kept.write_bytes(kept.read_bytes().replace(here, newer))
    assert opened(path) == wanted
    columns: Any = _packed(scan(path))
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


COSTS = {"names": np.frombuffer(b"tokens\0label_tokens", np.uint8)}


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [[-1, 2, 3]]}, {"rows": [[2**40 + 1, 2, 3]]}, {"rows": [[1, 2, -2]]},
        {"rows": [[1, 2]]}, {"rows": [1, 2, 3]}, {"rows": [[1.0, 2, 3]]}, {"indexes": [99]},
        {"indexes": [-1]}, {"indexes": [[0]]}, {"names": np.frombuffer(b"tokens", np.uint8)},
    ],
)  # fmt: skip
def test_costs_that_no_probe_gives_are_left_out(path, change, caplog):
    wanted = opened(path)
    file = next(file for file in caches(path) if file.suffix == ".costs")
    arrays = {**COSTS, "indexes": [0], "rows": [[1, 2, 3]], **change}
    file.write_bytes(
        sealed(
            (*identity(path), SAMPLES), {name: np.asarray(each) for name, each in arrays.items()}
        )
    )
    assert opened(path) == wanted
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"{file} holds no costs of this file: it is made again"]
