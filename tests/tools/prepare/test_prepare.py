"""`counterpoise prepare` writes what the source has, and says what it cannot."""

import datetime
import errno
import json
import os
import shutil
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from torch.utils.data import ConcatDataset, Subset

from counterpoise.tools.prepare import shards
from counterpoise.workers import TarDataset, VisionLanguage
from counterpoise.workers.sources.dead_letters import read_letters
from counterpoise.workers.sources.registry import open_data
from tests.tools.prepare import data_sets
from tests.tools.prepare.conftest import contents
from tests.workers.prepared import write_mds

HERE = "tests.tools.prepare.data_sets"


def test_shards_of_shards_have_the_same_samples(prepare: Any, data: Path, tmp_path: Path) -> None:
    report = prepare(data / "shards", "--out", tmp_path / "out", "--shard-size", 3)
    transform = VisionLanguage(tile_size=32, max_tiles=2, tokens_per_tile=4)
    source = TarDataset(data / "shards", transform)
    written = TarDataset(tmp_path / "out", transform)
    assert report["samples"] == len(written) == len(source)
    assert report["shards"] == len(written.files) > 10
    assert report["compared"] == 64
    for index in range(len(source)):
        assert written.key(index) == source.key(index)
        assert written.raw(index) == source.raw(index)
    for index in range(0, len(source), 100):
        one, other = written.load(index, 3, 7), source.load(index, 3, 7)
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_shards_of_records_have_the_same_samples(
    prepare: Any, data: Path, tmp_path: Path, kind: str
) -> None:
    whole, rows = TarDataset(data / "shards"), list[dict[str, Any]]()
    for index in range(0, len(whole), 40):
        raw = whole.raw(index)
        images = {
            f"{index}.{name}": value for name, value in raw.items() if isinstance(value, bytes)
        }
        for name, value in images.items() if kind == "jsonl" else ():
            (tmp_path / name).write_bytes(value)
        columns = [{"bytes": value, "path": name} for name, value in images.items()]
        own = {"id": f"no. {index}", "images": [*images] if kind == "jsonl" else columns}
        rows.append({**raw["json"], **own})
    path = tmp_path / f"chats.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    report = prepare(path, "--out", tmp_path / "out")
    source, written = open_data(path), TarDataset(tmp_path / "out")
    assert report["samples"] == report["compared"] == len(source) == len(written) == 34
    for index in range(len(source)):
        assert written.raw(index) == source.raw(index) | {"__key__": written.key(index)}
        assert written.key(index) == source.key(index).replace(".", "%2E")


def test_shards_of_a_data_set_have_its_fields(prepare: Any, tmp_path: Path) -> None:
    prepare(f"{HERE}:Fields", "--out", tmp_path, "--samples-per-shard", 4)
    written, source = TarDataset(tmp_path), data_sets.Fields()
    assert [path.name for path in written.files] == ["000000.tar", "000001.tar", "000002.tar"]
    for index in range(len(source)):
        raw, given = written.raw(index), source[index]
        assert np.array_equal(written[index]["picture.png"], np.asarray(given["picture"]))
        assert np.array_equal(raw["ids.npy"], given["ids"])
        assert raw["ids.npy"].dtype == np.int32
        assert raw["words.json"] == given["words"]
        same = {name: raw[name] for name in ("mp3", "caption", "cls")}
        assert same == {name: given[name] for name in same}
        assert raw["label.json"] == index
        assert written.key(index) == str(index)


def test_others_read_what_is_written(prepare: Any, tmp_path: Path) -> None:
    prepare(f"{HERE}:Many", "--out", tmp_path, "--samples-per-shard", 10)
    found = list(webdataset.WebDataset(str(tmp_path / "{000000..000002}.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [str(n) for n in range(23)]
    assert [sample["bin"] for sample in found] == [bytes(n * 100) for n in range(23)]
    with tarfile.open(tmp_path / "000000.tar") as tar:
        assert {info.mtime for info in tar} == {0}


def test_names_that_no_shard_can_have_are_escaped(prepare: Any, tmp_path: Path) -> None:
    prepare(f"{HERE}:Named", "--out", tmp_path)
    written = TarDataset(tmp_path)
    keys = [written.key(index) for index in range(len(written))]
    assert keys == [
        "a%2Eb", "a%2Ec", "dir.x/a%2Ejpg", "%00", "dir/%00", "%5F_x__", "%5F_x__/y", "100%", "語"
    ]  # fmt: skip
    assert [written[index]["txt"] for index in range(9)] == [str(n) for n in range(9)]


def test_the_bytes_do_not_depend_on_the_workers(prepare: Any, tmp_path: Path) -> None:
    words = (f"{HERE}:Many", "--samples-per-shard", 5, "--out")
    prepare(*words, tmp_path / "one")
    prepare(*words, tmp_path / "two", "--workers", 2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_second_run_writes_nothing_and_one_for_a_lost_shard_that_one(
    prepare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"{HERE}:Many", "--samples-per-shard", 5, "--out", tmp_path)
    prepare(*words)
    before = contents(tmp_path)
    written = list[str]()
    write = shards.write_shard

    def counting(task: shards.ShardTask, given: shards.SourceOptions) -> shards.WrittenShard:
        written.append(Path(task.path).name)
        return write(task, given)

    monkeypatch.setattr("counterpoise.tools.prepare.command.write_shard", counting)
    prepare(*words)
    assert not written
    (tmp_path / "000001.tar").unlink()
    (tmp_path / "000003.tar").write_bytes(b"short")
    prepare(*words)
    assert written == ["000001.tar", "000003.tar"]
    assert contents(tmp_path) == before


def test_broken_samples_end_the_run_or_are_left_out(
    prepare: Any, fails: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (f"{HERE}:Broken", "--samples-per-shard", 3, "--out", out)
    assert fails(*words, code=4) == "sample '1' of Broken: no such picture"
    report = prepare(*words, "--on-error", "skip")
    assert report["left_out"] == 4
    assert report["samples"] == report["compared"] == 5
    letters = read_letters(out / "dead-letters.jsonl")
    assert [(each.key, each.source) for each in letters] == [(k, "Broken") for k in "1468"]
    reasons = [each.reason for each in letters]
    assert reasons[0] == "no such picture"
    assert reasons[1].startswith("KeyError: 'width' (")
    assert reasons[2].startswith("words: object cannot be written")
    assert reasons[3].startswith("weights.pt: pickled members are refused")
    again = prepare(*words, "--on-error", "skip", "--dead-letter", tmp_path / "letters")
    assert again["left_out"] == 4
    assert read_letters(tmp_path / "letters") == letters


@pytest.mark.parametrize(
    ("data_set", "said"),
    [
        ("Twins", "samples 2 and 6 are both called 'c'; keys must differ"),
        ("Tuples", "sample '0' of Tuples: it is a tuple; needed are samples that are dicts"),
        ("Drawn", "is not what the source has as number"),
        ("mixed", "mixed is a mixture, which is an order: prepare its sources"),
        ("Nothing", f"{HERE}:Nothing: module {HERE} has no 'Nothing'; check the name"),
    ],
)
def test_what_cannot_be_prepared_is_named(
    fails: Any, tmp_path: Path, data_set: str, said: str
) -> None:
    # 4 is a sample that cannot be used, 2 what was asked for (docs/reference/exit-status.md)
    code = 4 if data_set == "Tuples" else 2
    assert said in fails(f"{HERE}:{data_set}", "--out", tmp_path, code=code)


def test_shards_are_written_to_a_folder(fails: Any) -> None:
    said = fails(f"{HERE}:Many", "--out", "s3://bucket/shards")
    assert said == "--out s3:/bucket/shards: give a local folder, and upload it as it is"


def test_shards_of_a_view_have_the_samples_and_names_of_its_parts(
    prepare: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = TarDataset(data / "shards", VisionLanguage())
    named: Any = data_sets.Named()
    view = ConcatDataset([Subset(whole, [700, 3]), Subset(named, [3])])
    monkeypatch.setattr(data_sets, "view", view, raising=False)
    prepare(f"{HERE}:view", "--out", tmp_path)
    written = TarDataset(tmp_path)
    assert [written.raw(n) for n in (0, 1)] == [whole.raw(700), whole.raw(3)]
    assert written.key(2) == "%00"


def test_a_folder_of_something_else_is_left_alone(prepare: Any, fails: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    assert "has other files (thesis.txt)" in fails(f"{HERE}:Many", "--out", tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"all of it"}
    out = tmp_path / "out"
    prepare(f"{HERE}:Many", "--out", out, "--samples-per-shard", 5)
    before = contents(out)
    said = fails(f"{HERE}:Many", "--out", out, "--samples-per-shard", 6)
    assert "begun with split {'samples': 5}, and now it is {'samples': 6}" in said
    assert "begun with data" in fails(f"{HERE}:Fields", "--out", out, "--samples-per-shard", 5)
    assert contents(out) == before


def test_two_at_once_are_refused(fails: Any, prepare: Any, tmp_path: Path) -> None:
    from counterpoise.tools.prepare.log import open_log

    with open_log(tmp_path):
        assert "another prepare writes to" in fails(f"{HERE}:Many", "--out", tmp_path)
    prepare(f"{HERE}:Many", "--out", tmp_path)


def test_a_full_disk_is_said_and_the_run_goes_on_later(
    prepare: Any, fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"{HERE}:Many", "--samples-per-shard", 5, "--out")
    prepare(*words, tmp_path / "whole")
    fsync, synced = os.fsync, list[int]()

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 6:  # the log's first line; then two for each shard
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        said = fails(*words, tmp_path / "out")
    assert said.startswith("No space left on device: ")
    assert "000002.tar; 2 of 5 shards are written: make room" in said
    assert not list((tmp_path / "out").glob(".*"))
    prepare(*words, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("words", [(), ("--index-only",), ("--index-only", "--out", "x")])
def test_it_is_shards_or_indexes(fails: Any, words: tuple[str, ...]) -> None:
    assert fails(f"{HERE}:Many", *words).startswith("give either --out DIR")


def test_shards_are_about_as_large_as_asked_for(prepare: Any, tmp_path: Path) -> None:
    prepare(f"{HERE}:Many", "--out", tmp_path, "--shard-size", 0.01)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.tar"))]
    assert len(sizes) > 3
    assert max(sizes) < 15_000


def test_a_copy_keeps_its_index_and_costs(
    prepare: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--out", tmp_path / "out", "--transform", "counterpoise.workers:VisionLanguage")
    assert prepare(data / "shards" / "mixed-00000.tar", *words)["without_cost"] == 0
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setattr("counterpoise.workers.tar.index.scan", None)
    copy = TarDataset(tmp_path / "copy", VisionLanguage())
    assert all(copy.known(index) is not None for index in range(len(copy)))


WHEN = datetime.datetime(2026, 1, 2)
REMEDY = "cannot be written, since JSON has none; leave it out, or prepare a data set in Python"


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([None, WHEN], "column 'v', timestamp[us],"),
        ([[], [WHEN.date()]], "column 'v', list<element: date32[day]>,"),
        ([{"n": 1, "at": None}, {"n": 2, "at": WHEN.time()}], "column 'v', struct<"),
        ([Decimal("1.5"), None], "column 'v', decimal128(2, 1),"),
        ([WHEN - WHEN, None], "column 'v', duration[us],"),
    ],
)
def test_a_column_that_json_has_no_values_for_is_refused_before_a_sample_is_read(
    fails: Any, tmp_path: Path, values: Any, column: str, on_error: str
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, out = tmp_path / "a.parquet", tmp_path / "out"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "v": values}), path)
    said = fails(path, "--out", out, "--on-error", on_error, code=2)
    assert said.startswith(column)
    assert REMEDY in said
    assert not list(out.glob("*.tar"))


@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:float32:2", "str_decimal"])
def test_a_column_of_mds_that_json_has_no_values_for_is_refused(
    fails: Any, tmp_path: Path, encoding: str
) -> None:
    write_mds(tmp_path / "mds", {"text": "str", "v": encoding}, [{"text": b"a", "v": b"x" * 8}])
    said = fails(tmp_path / "mds", "--out", tmp_path / "out", "--on-error", "skip", code=2)
    assert said.startswith(f"column 'v', {encoding}, {REMEDY}")
