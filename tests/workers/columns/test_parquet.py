"""Parquet files: forms of columns, names of rows, row groups, and what is refused."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.workers import SampleError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from counterpoise.workers.columns import row_groups  # noqa: E402
from counterpoise.workers.sources.failures import DataChangedError  # noqa: E402
from tests.workers.columns.tables import write  # noqa: E402
from tests.workers.conftest import Picture  # noqa: E402

TALK = [[{"from": "human", "value": "<image> hi"}, {"from": "gpt", "value": "ho"}]] * 5


def raws(path: Any, **given: Any) -> list[dict[str, Any]]:
    found = cp.ParquetDataset(path, **given)
    return [found.raw(index) for index in range(len(found))]


def test_rows_are_named_by_file_and_number(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": list("abcde")})
    write(tmp_path / "b.parquet", {"text": list("fg")})
    found = cp.ParquetDataset(tmp_path)
    assert [found.key(k) for k in (0, 4, 5, 6)] == [
        "a.parquet:0", "a.parquet:4", "b.parquet:0", "b.parquet:1"
    ]  # fmt: skip
    assert found.locate_file(5) == str(tmp_path / "b.parquet")
    assert [found.raw(k)["json"]["text"] for k in range(7)] == list("abcdefg")
    with pytest.raises(IndexError):
        found.key(7)


@pytest.mark.parametrize("kind", ["bytes", "struct", "list", "structs", "nested", "path", "paths"])
def test_images_of_every_form_are_the_same_members(
    kind: str, tmp_path: Path, picture: Picture
) -> None:
    data = [picture(8, 6, "PNG", seed=n) for n in range(5)]
    (tmp_path / "media").mkdir()
    for n, each in enumerate(data):
        (tmp_path / "media" / f"{n}.png").write_bytes(each)
    structs = [{"bytes": each, "path": f"{n}.png"} for n, each in enumerate(data)]
    paths = [f"media/{n}.png" for n in range(5)]
    column = {
        "bytes": data, "struct": structs, "list": [[each] for each in data],
        "structs": [[each] for each in structs], "nested": [[[None, each]] for each in structs],
        "path": paths, "paths": [[each] for each in paths],
    }[kind]  # fmt: skip
    path = write(tmp_path / "a.parquet", {"conversations": TALK, "image": column})
    transform = cp.workers.VisionLanguage(tile_size=14, tokens_per_tile=1)
    found = cp.ParquetDataset(path, transform)
    for index, each in enumerate(data):
        (name,) = set(raw := found.raw(index)) - {"__key__", "json"}
        assert name.rpartition(".")[2] in ("png", "jpg")
        assert raw[name] == each
        expected = transform({"__key__": "", "json": {"conversations": TALK[0]}, "png": each})
        assert np.array_equal(found[index]["pixel_values"], expected["pixel_values"])
        assert found.probe(index).cost["tokens"] == len(found[index]["input_ids"])


def test_images_are_named_where_their_columns_are_not(tmp_path: Path, picture: Picture) -> None:
    one, two = picture(seed=1), picture(seed=2)
    path = write(tmp_path / "a.parquet", {"left": [one], "right": [two], "hash": [b"x"]})
    with pytest.raises(ValueError, match=r"column 'left' holds bytes: name it in images="):
        cp.ParquetDataset(path)
    (raw,) = raws(path, images=["right", "left"])
    assert (raw["img0.jpg"], raw["img1.jpg"]) == (two, one)
    assert raw["json"]["hash"] == b"x"
    (raw,) = raws(path, images="left", columns=["left"])
    assert raw["jpg"] == one
    assert "hash" not in raw["json"]


def test_columns_as_webdataset_has_them(tmp_path: Path, picture: Picture) -> None:
    columns: dict[str, Any] = {
        "__key__": ["a"],
        "__url__": ["x"],
        "jpg": [picture()],
        "json": [{"text": "hi"}],
    }
    (raw,) = raws(write(tmp_path / "a.parquet", columns))
    assert raw == {"__key__": "a", "json": {"text": "hi"}, "jpg": columns["jpg"][0]}


def test_json_texts_nulls_and_odd_types(tmp_path: Path) -> None:
    columns = {
        "messages": [json.dumps([{"role": "user"}]), None, "{", "[]", "[]"],
        "tag": pa.array(["x", None, "y", "x", "y"]).dictionary_encode(),
        "large": pa.array(["1", "2", "3", "4", None], pa.large_string()),
        "deep": [[[1], [2, 3]], [], None, [[]], [None]],
        "when": pa.array([0, 1, 2, 3, 4], pa.timestamp("ns")),
    }
    found = cp.ParquetDataset(write(tmp_path / "a.parquet", columns))
    first = found.raw(0)["json"]
    assert first["messages"] == [{"role": "user"}]
    assert first["deep"] == [[1], [2, 3]]
    assert (first["tag"], first["large"]) == ("x", "1")
    assert found.raw(1)["json"]["messages"] is None
    assert found.raw(1)["json"]["tag"] is None
    with pytest.raises(SampleError, match=r"'a.parquet:2' of .*: column 'messages' is no JSON"):
        found.raw(2)


def test_files_of_no_rows_are_read_and_alone_refused(tmp_path: Path) -> None:
    empty = pa.table({"text": pa.array([], pa.string())})
    write(tmp_path / "a.parquet", empty)
    with pytest.raises(ValueError, match="no samples in 1 files"):
        cp.ParquetDataset(tmp_path)
    write(tmp_path / "b.parquet", {"text": list("xy")})
    write(tmp_path / "c.parquet", empty)
    write(tmp_path / "d.parquet", {"text": pa.array(["z"], pa.large_string())})
    assert [raw["json"]["text"] for raw in raws(tmp_path)] == list("xyz")


def test_files_of_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": ["x"]})
    write(tmp_path / "b.parquet", {"text": ["x"], "more": [1]})
    with pytest.raises(ValueError, match=r"b.parquet has not the columns of .*a.parquet: .* more"):
        cp.ParquetDataset(tmp_path)
    assert len(cp.ParquetDataset(tmp_path, columns=["text"])) == 2
    with pytest.raises(ValueError, match=r"a.parquet: 0 columns 'more'; there are text"):
        cp.ParquetDataset(tmp_path, columns=["more"])


def test_keys_are_a_column_and_differ(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet", {"id": [7, 8, 9], "twice": list("aab"), "some": ["a", None, "b"]}
    )
    found = cp.ParquetDataset(path, key="id")
    assert [found.key(k) for k in range(3)] == ["7", "8", "9"]
    with pytest.raises(ValueError, match="key a stands in two rows"):
        cp.ParquetDataset(path, key="twice")
    with pytest.raises(ValueError, match="row 1 has no key"):
        cp.ParquetDataset(path, key="some")
    with pytest.raises(ValueError, match="no column 'none'"):
        cp.ParquetDataset(path, key="none")


def test_lengths_say_costs_and_nothing_else_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"ids": [[1] * n for n in range(5)], "n": [9, 8, 7, 6, 0], "text": ["x"] * 5}
    found = cp.ParquetDataset(
        write(tmp_path / "a.parquet", columns), lengths={"tokens": "ids", "tiles": "n"}
    )
    monkeypatch.setattr(found, "row", lambda *_: pytest.fail("a row was read"))
    assert found.knows_costs
    assert not found.decode_first
    assert found.probe(2).cost == {"tokens": 2, "tiles": 7}
    assert [c.tolist() for c in found.known_costs(["tiles"])] == [[9, 8, 7, 6, 0]]
    assert found.known_costs(["other"]) is None
    with pytest.raises(ValueError, match="give one of them"):
        cp.ParquetDataset(tmp_path, cost=dict, lengths={"n": "n"})
    with pytest.raises(ValueError, match="column 'text' has string"):
        cp.ParquetDataset(tmp_path, lengths={"n": "text"}).probe(0)


# --- row groups


def test_row_groups_are_read_once_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", {"image": [os.urandom(1000) for _ in range(40)]}, 4)
    found = cp.ParquetDataset(path)
    read = list[int]()
    inner = row_groups.read_columns

    def noted(*given: Any) -> Any:
        read.append(given[3])
        return inner(*given)

    monkeypatch.setattr(row_groups, "read_columns", noted)
    for index in [*range(40), 38, 2, 39, 1]:
        found.raw(index)
    assert read == list(range(10))
    monkeypatch.setattr(row_groups, "HELD_BYTES", 3 * 4100)
    for index in range(0, 40, 4):
        found.raw(index)
    assert len(found._groups._held) <= 3
    assert found._groups._bytes == sum(t.nbytes for t in found._groups._held.values()) <= 12300
    read.clear()
    for index in (39, 36, 0, 37, 1):
        found.raw(index)
    assert read == [0]


def test_a_forked_process_opens_files_of_its_own(tmp_path: Path) -> None:
    found = cp.ParquetDataset(write(tmp_path / "a.parquet", {"text": list("abcdef")}))
    found.raw(0)
    mine = found._groups._files[tmp_path / "a.parquet"]
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            text = found.raw(5)["json"]["text"]
            is_own = found._groups._files[tmp_path / "a.parquet"] is not mine
            os.write(writer, f"{text} {is_own}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"f True"
    os.close(reader)


def test_a_group_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cp.ParquetDataset(write(tmp_path / "a.parquet", {"text": ["x" * 5000]}))
    monkeypatch.setattr(row_groups, "LARGEST_GROUP", 10)
    with pytest.raises(SampleError, match="write the file again with row_group_size=16"):
        found.raw(0)


# --- damage, change and refusals


def test_damaged_footers_are_one_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", {"text": ["x" * 100] * 9}).read_bytes()
    path = tmp_path / "b" / "a.parquet"
    path.parent.mkdir()
    for damaged in (b"", b"PAR1", whole[:-1], whole[:50], whole[:-300] + bytes(292) + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"^{path}: no parquet file: [^\n]*$"):
            cp.ParquetDataset(path)


def test_damaged_pages_cost_their_rows_only(tmp_path: Path) -> None:
    table = pa.table({"text": [os.urandom(500).hex() for _ in range(4)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=2, compression="snappy", use_dictionary=False)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 40)
    found = cp.ParquetDataset(path)
    assert found.raw(1)["json"]["text"] == table.column(0)[1].as_py()
    with pytest.raises(SampleError, match=r"'a.parquet:2' of .*row group 1 is damaged"):
        found.raw(2)


def test_a_file_that_changes_is_an_error_and_then_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": list("abcdef")})
    found = cp.ParquetDataset(path)
    before = found.data_digest()
    found.raw(0)
    write(path, {"text": list("uvwxyz") * 2})
    with pytest.raises(DataChangedError):
        found.raw(1)
    assert found.reopen_if_changed()
    assert not found.reopen_if_changed()
    assert (len(found), found.raw(1)["json"]["text"]) == (12, "v")
    assert found.data_digest() != before


def test_pickled_columns_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"text": ["a"], "x.pkl": [b"cos\nsystem\n"]})
    with pytest.raises(ValueError, match=r"a.parquet: column 'x.pkl' is pickled and refused"):
        cp.ParquetDataset(path)
    assert raws(path, columns=["text"])[0]["json"] == {"text": "a"}
    about = {b"ARROW:extension:name": b"arrow.py_extension_type",
             b"ARROW:extension:metadata": b"cos\nsystem\n(S'touch x'\ntR."}  # fmt: skip
    inner = pa.field("odd", pa.int64(), metadata=about)
    for field in (inner, pa.field("outer", pa.struct([inner]))):
        values = [1] if field is inner else [{"odd": 1}]
        path = write(tmp_path / "b.parquet", pa.table([values], schema=pa.schema([field])))
        with pytest.raises(ValueError, match="is pickled and refused"):
            cp.ParquetDataset(path)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "link.png", "http://x/a.png"])
def test_paths_that_leave_the_root_are_refused(name: str, tmp_path: Path, picture: Picture) -> None:
    root = tmp_path / "root"
    write(root / "a.parquet", {"text": ["hi"], "image": [name]})
    (tmp_path / "secret.png").write_bytes(picture())
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    found = cp.ParquetDataset("a.parquet", root=root)
    for read in (found.raw, found.probe):
        with pytest.raises(SampleError, match=r"leaves|leads out of the root|is a URL"):
            read(0)
    with pytest.raises(SampleError, match=r"leaves|leads out of the root|is a URL"):
        cp.ParquetDataset("a.parquet", root=root, media="..").raw(0)


@pytest.mark.parametrize(
    "odd",
    [
        {"columns": 5}, {"images": [3]}, {"key": 3}, {"lengths": ["a"]}, {"media": 4}, {"cost": 1},
        {"x": 1},
    ],
)  # fmt: skip
def test_descriptions_with_odd_values_are_refused(odd: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": ["hi"], "image": ["a.png"]})
    spec = {"source": "parquet", "pattern": ["a.parquet"], "transform": None, **odd}
    with pytest.raises(ValueError, match=r"\w"):
        cp.ParquetDataset.from_spec(spec, tmp_path)


def test_without_pyarrow_a_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'counterpoise\[parquet\]'"):
        cp.ParquetDataset(tmp_path)


@pytest.mark.parametrize("values", [[3, None, 4], [[1], None, [2, 2]]])
def test_a_length_that_is_missing_is_no_length_of_0(tmp_path: Path, values: Any) -> None:
    data = cp.ParquetDataset(write(tmp_path / "a.parquet", {"n": values}), lengths={"tokens": "n"})
    with pytest.raises(ValueError, match=r"lengths: column 'n' has no value in 1 rows: fill"):
        data.probe(0)


def test_a_folder_named_as_a_hive_partition_gives_no_column(tmp_path: Path) -> None:
    (tmp_path / "lang=en").mkdir()
    write(tmp_path / "lang=en" / "a.parquet", {"text": ["hi"]})
    data = cp.ParquetDataset(f"{tmp_path}/*/*.parquet")
    assert {*data.raw(0)} == {"__key__", "json"}
    assert data.raw(0)["json"] == {"text": "hi"}


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ({"bytes": b"?", "path": "a.wav"}, r"'a\.wav'"),
        ({"bytes": b"RIFF\n\0\0\0WAVEfmt ", "path": None}, "b'RIFF"),
        ({"bytes": b"fLaC\0", "path": "a"}, "'a'"),
        ({"bytes": b"ID3\4", "path": None}, "b'ID3"),
    ],
)
def test_a_sound_in_a_column_of_files_is_no_image(file: Any, named: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"speech": [file]})
    with pytest.raises(SampleError, match=rf"column 'speech' holds {named}.*call it audio"):
        cp.ParquetDataset(path).raw(0)


def test_an_encrypted_file_is_called_so(tmp_path: Path) -> None:
    try:
        import pyarrow.parquet.encryption as encryption
    except ImportError:
        pytest.skip("pyarrow without encryption")

    class Plain(encryption.KmsClient):
        def wrap_key(self, key_bytes: bytes, _: str) -> str:
            return base64.b64encode(key_bytes).decode()

        def unwrap_key(self, wrapped_key: str, _: str) -> bytes:
            return base64.b64decode(wrapped_key)

    factory = encryption.CryptoFactory(lambda _: Plain())
    for number, is_plain in enumerate((True, False)):
        config = encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"c": ["n"]}, plaintext_footer=is_plain
        )
        given = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
        path = tmp_path / f"{number}.parquet"
        with pq.ParquetWriter(
            path, pa.schema([("n", pa.int64())]), encryption_properties=given
        ) as to:
            to.write_table(pa.table({"n": [1, 2]}))
        with pytest.raises(ValueError, match=r"parquet is encrypted, and is not read"):
            cp.ParquetDataset(path).raw(0)
