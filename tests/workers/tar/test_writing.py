"""Shards are written in webdataset's form, are read back as they were, and end with their hash."""

import datetime
import decimal
import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

from counterpoise.workers import TarDataset
from counterpoise.workers.tar.index import scan, shard_stamp
from counterpoise.workers.tar.members import decode_member, encode_member
from counterpoise.workers.tar.writing import ShardWriter, encode_sample, shard_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def written(path: Path, samples: dict[str, dict[str, Any]]) -> Path:
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for key, raw in samples.items():
            writer.write(key, encode_sample(raw))
        writer.close()
        assert file.tell() == writer.size
    return path


@given(value=JSON)
def test_what_json_can_say_comes_back(value: Any) -> None:
    for field in ("json", "about", "a.b"):
        name, data = encode_member(field, value)
        found = decode_member(name, data)
        assert found == value
        assert type(found) is type(value)


@given(value=st.text(st.characters(exclude_categories=["Cs"])))
def test_texts_come_back(value: str) -> None:
    for field in ("txt", "caption", "json", "about"):
        expected = value.removeprefix("\ufeff") if field != "json" else value
        assert decode_member(*encode_member(field, value)) == expected


@pytest.mark.parametrize(
    "value", [np.arange(6).reshape(2, 3), np.array([1, np.nan], np.float32), np.array(5)]
)
def test_arrays_come_back(value: np.ndarray) -> None:
    found = decode_member(*encode_member("tokens", value))
    assert found.dtype == value.dtype
    assert np.array_equal(found, value, equal_nan=value.dtype.kind == "f")


@pytest.mark.parametrize(
    "raw",
    [
        {"a": object()}, {"a": np.array([object()])}, {"a.pkl": b""}, {"A": 1, "a": 2}, {"__a": 1},
        {}, {"a": Image.new("CMYK", (1, 1))},
    ],
)  # fmt: skip
def test_what_a_shard_cannot_hold_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"written|refused|another field"):
        encode_sample(raw)


@given(keys=st.lists(st.text(max_size=300), unique_by=shard_key, max_size=5))
def test_keys_come_back(tmp_path_factory: pytest.TempPathFactory, keys: list[str]) -> None:
    path = tmp_path_factory.mktemp("keys") / "a.tar"
    kept = list[str]()
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for key in map(shard_key, keys):
            assert shard_key(key) == key
            before = file.tell()
            try:
                writer.write(key, {"txt": b"x", "img0.jpg": b""})
                kept.append(key)
            except ValueError:  # half of a surrogate pair
                assert file.tell() == before
                assert any(0xD800 <= ord(each) < 0xE000 for each in key)
        writer.close()
    index = scan(path)
    assert [index.name(row) for row in range(len(index))] == kept
    for row in range(len(index)):
        assert [each.extension for each in index.sample(row)] == ["txt", "img0.jpg"]


def test_a_name_that_stands_there_is_refused() -> None:
    writer = ShardWriter(io.BytesIO())
    writer.write("a", {"txt": b""})
    with pytest.raises(ValueError, match="another sample is called 'a'"):
        writer.write("a", {"txt": b""})
    with pytest.raises(ValueError, match="cannot be the name of a member"):
        writer.write("b", {"a/b": b""})


def test_a_copy_has_the_stamp_of_the_shard_and_other_contents_have_not(tmp_path: Path) -> None:
    one = written(tmp_path / "a.tar", {"a": {"txt": "hello"}})
    other = written(tmp_path / "b.tar", {"a": {"txt": "heller"}})
    copy = Path(shutil.copyfile(one, tmp_path / "c.tar"))
    os.utime(copy, ns=(0, 1))
    assert shard_stamp(copy) == shard_stamp(one)
    assert shard_stamp(other)[0] == shard_stamp(one)[0]
    assert shard_stamp(other) != shard_stamp(one)


@pytest.mark.parametrize("change", ["appended", "cut", "empty", "not ours"])
def test_without_its_hash_at_the_end_a_shard_is_told_by_its_time(
    tmp_path: Path, change: str
) -> None:
    path = written(tmp_path / "a.tar", {"a": {"txt": "hello"}})
    if change == "appended":
        (tmp_path / "b.txt").write_text("more")
        subprocess.run(["tar", "-rf", path, "-C", tmp_path, "b.txt"], check=True)
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif change == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(path.read_bytes().replace(b"__counterpoise__/", b"__counterpoint__/"))
    os.utime(path, ns=(0, 77))
    assert shard_stamp(path) == (path.stat().st_size, 77)


def test_a_shard_in_place_of_another_is_read_anew(tmp_path: Path) -> None:
    samples = {str(n): {"txt": "hello"} for n in range(9)}
    path = written(tmp_path / "a.tar", samples)
    kept = TarDataset(path)
    assert (tmp_path / "a.tar.index.npz").exists()
    written(path, {f"{n}x": {"txt": "hello"} for n in range(9)})
    assert [TarDataset(path).key(n) for n in (0, 8)] == ["0x", "8x"]
    assert kept.reopen_if_changed()
    assert json.dumps(kept.key(3)) == '"3x"'


@pytest.mark.parametrize(
    "value",
    [datetime.datetime(2020, 1, 1), datetime.date(2020, 1, 1), decimal.Decimal("1.5"), np.ones(2)],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_column_that_json_has_no_value_for_is_named_with_the_remedy(
    value: Any, is_nested: bool
) -> None:
    odd = [{"x": value}] if is_nested else value
    with pytest.raises(ValueError, match=r"json: column 'odd', .* cannot be written: .*; leave it"):
        encode_sample({"__key__": "a", "json": {"id": 1, "odd": odd}})
