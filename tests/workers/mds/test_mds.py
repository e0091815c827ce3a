"""MDS folders: every sample by its offset, in a tar's form; nothing damaged is taken for whole."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.workers import SampleError
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.sources.registry import open_source
from tests.workers.prepared import image_list, write_mds

COLUMNS = {"caption": "str", "image": "jpeg", "n": "int"}


@pytest.fixture
def folder(picture: Any, tmp_path: Path) -> Path:
    samples = [
        {
            "caption": f"it is {n}".encode(),
            "image": picture(5 + n, 4, "JPEG", seed=n),
            "n": np.int64(n).tobytes(),
        }
        for n in range(7)
    ]
    return write_mds(tmp_path / "mds", COLUMNS, samples, per_shard=3)


def one(path: Path, value: bytes, encoding: str, name: str = "x") -> Any:
    """Return the dataset of one sample with one column."""
    return cp.MDSDataset(write_mds(path, {name: encoding}, [{name: value}]))


def given(raw: Any) -> Any:
    return raw


def test_samples_are_in_order_and_in_the_form_of_a_tars(folder: Path, picture: Any) -> None:
    data = cp.MDSDataset(folder)
    assert [data.key(n) for n in range(7)] == [
        f"shard.{number:05}:{row}" for number, count in enumerate((3, 3, 1)) for row in range(count)
    ]
    for n in range(7):
        raw = data.raw(n)
        assert raw["json"] == {"caption": f"it is {n}", "n": n}
        assert raw["jpg"] == picture(5 + n, 4, "JPEG", seed=n)
        assert data[n]["jpg"].shape == (4, 5 + n, 3)
        assert data.probe(n).cost["pixels"] == 4 * (5 + n)
    assert pickle.loads(pickle.dumps(data)).raw(3) == data.raw(3)
    assert data.locate_file(4) == str(folder / "shard.00001.mds")
    for outside in (-1, 7):
        with pytest.raises(IndexError):
            data[outside]


@pytest.mark.parametrize(
    ("encoding", "value", "found"),
    [
        ("str", "hé".encode(), "hé"), ("int", np.int64(-3).tobytes(), -3), ("uint8", b"\xff", 255),
        ("int16", np.int16(-2).tobytes(), -2), ("float32", np.float32(0.5).tobytes(), 0.5),
        ("str_int", b"100000000000000000000", 10**20), ("str_float", b"1e-3", 0.001),
        ("json", b'{"a": [1]}', {"a": [1]}),
    ],
)  # fmt: skip
def test_values_are_fields_of_the_json_member(
    tmp_path: Path, encoding: str, value: bytes, found: Any
) -> None:
    assert one(tmp_path / "a", value, encoding).raw(0)["json"] == {"x": found}


def test_decimals_keep_their_digits(tmp_path: Path) -> None:
    assert str(one(tmp_path / "a", b"1.50", "str_decimal").raw(0)["json"]["x"]) == "1.50"


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("ndarray", bytes([17, 2 << 2, 2, 3])),
        ("ndarray:int16", bytes([2 << 2 | 1, 2, 0, 3, 0])),
        ("ndarray:int16:2,3", b""),
    ],
)
def test_arrays_have_their_shape(tmp_path: Path, encoding: str, head: bytes) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    found = one(tmp_path / "a", head + array.tobytes(), encoding).raw(0)["json"]["x"]
    assert found.dtype == np.int16
    assert found.tolist() == array.tolist()
    found[0] = 1  # it is the sample's own


def test_a_column_json_is_the_record(tmp_path: Path, picture: Any) -> None:
    turns = [{"role": "user", "content": "hi"}]
    cases: list[tuple[bytes, str, Any]] = [
        (b'{"caption": "x"}', "json", {"caption": "x"}),
        (b'{"caption": "x"}', "bytes", {"caption": "x"}),
        (json.dumps(turns).encode(), "str", {"messages": turns}),
    ]
    for number, (value, encoding, found) in enumerate(cases):
        sample = {"json": value, "jpg": picture(4, 4, "JPEG"), "n": bytes(8)}
        columns = {"json": encoding, "jpg": "bytes", "n": "int"}
        raw = cp.MDSDataset(write_mds(tmp_path / f"{number}", columns, [sample])).raw(0)
        assert raw == {"__key__": "shard.00000:0", "json": {"n": 0, **found}, "jpg": sample["jpg"]}
    with pytest.raises(SampleError, match="is a str, not an object"):
        one(tmp_path / "a", b'"x"', "json", "json").raw(0)


def test_images_of_all_encodings_are_files(tmp_path: Path, picture: Any) -> None:
    jpeg, png = picture(4, 3, "JPEG"), picture(4, 3, "PNG", mode="L")
    pixels = np.arange(12, dtype=np.uint8)
    pil = np.array([4, 3, 1], np.uint32).tobytes() + b"L" + pixels.tobytes()
    several = np.array([1, len(jpeg)], np.uint32).tobytes() + jpeg
    sample = {"a": jpeg, "b": png, "c": pil, "d": image_list([jpeg, png]), "e": several,
              "images": png}  # fmt: skip
    columns = {"a": "jpeg", "b": "png", "c": "pil", "d": "list[jpeg]", "e": "jpeg_array",
               "images": "bytes"}  # fmt: skip
    folder = write_mds(tmp_path / "a", columns, [sample])
    data = cp.MDSDataset(folder)
    raw = data.raw(0)
    assert list(raw) == ["__key__", "json", *(f"img{n}.jpg" for n in range(7))]
    found = [raw[f"img{n}.jpg"] for n in range(7)]
    assert found[:2] + found[3:] == [jpeg, png, jpeg, png, jpeg, png]
    assert data[0]["img2.jpg"][:, :, 0].tolist() == pixels.reshape(3, 4).tolist()
    assert data.probe(0).cost["pixels"] == 7 * 12
    chosen = cp.MDSDataset(folder, images=["images", "b"])
    assert [chosen.raw(0)[f"img{n}.jpg"] for n in range(2)] == [png, png]


def test_bytes_have_to_be_called_images(tmp_path: Path, picture: Any) -> None:
    value = picture(4, 4, "JPEG")
    with pytest.raises(ValueError, match=r"column 'x' holds bytes: name it in images=\[\.\.\.\]"):
        one(tmp_path / "a", value, "bytes")
    assert cp.MDSDataset(tmp_path / "a", images=["x"]).raw(0)["jpg"] == value
    assert cp.MDSDataset(tmp_path / "a", images=[]).raw(0)["json"] == {"x": value}
    with pytest.raises(ValueError, match="no column 'y'; there are x"):
        cp.MDSDataset(tmp_path / "a", images=["y"])
    with pytest.raises(SampleError, match=r"'a\.jpg' is named by a column"):
        one(tmp_path / "b", b"a.jpg", "str", "image").raw(0)
    assert one(tmp_path / "c", b"sound", "bytes", "audio").raw(0)["wav"] == b"sound"


@pytest.mark.parametrize(
    ("encoding", "value", "why"),
    [
        ("str", b"\xff", "decode"), ("str_int", b"x", "x"), ("str_decimal", b"x", "no number"),
        ("json", b"[", "JSONDecodeError"), ("json", b"[" * 100_000, "RecursionError"),
        ("ndarray", b"", "no array"), ("ndarray", bytes([77, 4, 1]), "no array"),
        ("ndarray", bytes([8, 4 << 2 | 3, *(b"\xff" * 32)]), "no array"),
        ("ndarray:int16:2,3", bytes(5), "no array"),
        ("pil", np.array([1 << 31, 1 << 31, 1], np.uint32).tobytes() + b"L", "not the pixels"),
        ("pil", np.array([2, 2, 4], np.uint32).tobytes() + b"CMYK" + bytes(16), "of mode 'CMYK'"),
        ("pil", b"\0", "not the pixels|buffer|unpack"),
        ("list[jpeg]", np.array([0, 1 << 31], np.uint32).tobytes(), "lengths of"),
        ("list[jpeg]", np.array([0, 1, 9], np.uint32).tobytes(), "not those of"),
        ("jpeg_array", b"", "no lengths|lengths of|not those of"),
    ],
)  # fmt: skip
def test_damaged_values_name_sample_and_column(
    tmp_path: Path, encoding: str, value: bytes, why: str
) -> None:
    data = one(tmp_path / "a", value, encoding)
    with pytest.raises(SampleError, match=rf"'shard\.00000:0' of .*column 'x': .*({why})"):
        data.raw(0)


def rewrite(folder: Path, **changes: Any) -> None:
    """Change facts of the first shard in index.json."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0] |= changes
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "csv"}, r"shard 0: Invalid enum value 'csv' - at `\$\.format`"),
        ({"version": 3}, r"Invalid enum value 3 - at `\$\.version`"),
        ({"samples": 4}, "says that it has 3 samples.*index.json 4"),
        ({"samples": "3"}, r"Expected `int`, got `str` - at `\$\.samples`"),
        ({"samples": -1}, "Expected `int` >= 0"),
        ({"samples": 1 << 50}, "bytes"),
        ({"raw_data": {"basename": "a", "bytes": 1 << 32}}, "Expected `int` <"),
        ({"column_encodings": ["str", "pkl", "int"]}, "pickles, which are refused"),
        ({"column_encodings": ["str", "jpeg", "int128"]}, "'int128', which is not known"),
        ({"column_encodings": ["str", "jpeg", "ndarray:object"]}, "'ndarray:object'"),
        ({"column_encodings": ["str"]}, "shard 0"),
        ({"column_names": 5}, "shard 0"),
        ({"column_sizes": [None, None, 1 << 70]}, "Expected `int"),
        ({"raw_data": {"basename": "../x.mds", "bytes": 1}}, "leaves the folder"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 1}}, "leaves the folder"),
        ({"raw_data": {"basename": "shard.00001.mds", "bytes": 1}}, "names a shard twice"),
        ({"raw_data": {"basename": "gone.mds", "bytes": 1}}, r"no such file: .*gone\.mds"),
        ({"raw_data": {"bytes": 1}}, "missing required field `basename`"),
        ({"raw_data": None}, "shard 0"),
    ],
)
def test_an_index_that_says_otherwise_is_refused(folder: Path, changes: Any, why: str) -> None:
    rewrite(folder, **changes)
    with pytest.raises((ValueError, FileNotFoundError), match=why) as told:
        cp.MDSDataset(folder)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is damaged"), ("[" * 100_000, "is damaged"), ("[]", "no index of MDS"),
        ('{"chunks": [], "config": {}}', "no index of MDS"), ('{"shards": [5]}', "shard 0"),
        ('{"shards": []}', "no samples in 0 files"), ("\0", "is damaged"),
    ],
)  # fmt: skip
def test_an_index_of_another_form_is_refused(folder: Path, text: str, why: str) -> None:
    (folder / "index.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        cp.MDSDataset(folder)


def test_missing_cut_and_changed_shards_are_told(folder: Path) -> None:
    path, data = folder / "shard.00001.mds", cp.MDSDataset(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(DataChangedError, match="changed after it was indexed"):
        data.raw(3)
    with pytest.raises(ValueError, match=r"shard\.00001\.mds has .*copy it again"):
        cp.MDSDataset(folder)
    path.write_bytes(whole)
    assert data.reopen_if_changed()
    assert data.raw(3)["json"]["n"] == 3
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds"):
        cp.MDSDataset(folder)
    with pytest.raises(FileNotFoundError, match=r"index\.json; an MDS folder has one"):
        cp.MDSDataset(folder.parent)


@pytest.mark.parametrize("place", [3, 0, 1 << 31])
def test_offsets_out_of_bounds_are_that_samples_error(folder: Path, place: int) -> None:
    path = folder / "shard.00000.mds"
    damaged = bytearray(path.read_bytes())
    damaged[8:12] = np.uint32(place).tobytes()
    path.write_bytes(damaged)
    data = cp.MDSDataset(folder)
    for row in (0, 1):
        with pytest.raises(SampleError, match=rf"shard\.00000:{row}"):
            data.raw(row)
    assert data.raw(2)["json"]["n"] == 2


def test_lengths_out_of_bounds_are_that_samples_error(folder: Path) -> None:
    path = folder / "shard.00000.mds"
    damaged = bytearray(path.read_bytes())
    begin = int.from_bytes(damaged[4:8], "little")
    damaged[begin : begin + 4] = np.uint32(1 << 31).tobytes()
    path.write_bytes(damaged)
    with pytest.raises(SampleError, match=r"column 'caption': it ends \d+ bytes too late"):
        cp.MDSDataset(folder).raw(0)
    damaged[begin : begin + 4] = np.uint32(1).tobytes()
    path.write_bytes(damaged)
    with pytest.raises(SampleError, match=r"its columns have \d+ bytes, and it has"):
        cp.MDSDataset(folder).raw(0)


@pytest.mark.parametrize("method", ["gz", "bz2"])
def test_compressed_shards_are_unpacked_once(tmp_path: Path, method: str) -> None:
    samples = [{"text": f"{n}".encode() * 100} for n in range(5)]
    plain = cp.MDSDataset(write_mds(tmp_path / "plain", {"text": "str"}, samples))
    folder = write_mds(tmp_path / method, {"text": "str"}, samples, 2, method)
    cache = tmp_path / "cache"
    data = cp.MDSDataset(folder, cache=cache)
    assert [data.raw(n)["json"] for n in range(5)] == [plain.raw(n)["json"] for n in range(5)]
    made = {path: path.stat().st_ino for path in cache.iterdir()}
    assert len(made) == 3
    assert len(list(folder.iterdir())) == 4
    cp.MDSDataset(folder, cache=cache)
    packed = folder / f"shard.00000.mds.{method}"
    damaged = bytearray(packed.read_bytes())
    damaged[len(damaged) // 2 :] = bytes(len(damaged) - len(damaged) // 2)
    packed.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"cannot be unpacked.*copy it again"):
        cp.MDSDataset(folder, cache=cache)
    assert {path: path.stat().st_ino for path in cache.iterdir()} == made


@pytest.mark.parametrize("method", ["zstd", "br", "snappy"])
def test_other_compressions_are_pyarrows(tmp_path: Path, method: str) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    codec = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}[method]
    folder = write_mds(tmp_path / "a", {"text": "str"}, [{"text": b"hello" * 50}], 1, "gz")
    plain = write_mds(tmp_path / "b", {"text": "str"}, [{"text": b"hello" * 50}], 1)
    data = (plain / "shard.00000.mds").read_bytes()
    packed = arrow.compress(data, codec, asbytes=True)
    (folder / "shard.00000.mds.x").write_bytes(packed)
    rewrite(folder, compression=f"{method}:3", zip_data={"basename": "shard.00000.mds.x"},
            raw_data={"basename": "shard.00000.mds", "bytes": len(data)})  # fmt: skip
    assert cp.MDSDataset(folder).raw(0)["json"] == {"text": "hello" * 50}
    (folder / "shard.00000.mds.x").write_bytes(packed[:-5])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        cp.MDSDataset(folder)
    rewrite(folder, raw_data={"basename": "shard.00000.mds", "bytes": (1 << 32) - 1})
    with pytest.raises(ValueError, match=r"cannot be unpacked|cannot hold"):
        cp.MDSDataset(folder)


@pytest.mark.parametrize(
    ("said", "why"), [(-1, "more than"), (1, "less than")]
)  # fmt: skip
def test_no_more_is_unpacked_than_was_said(tmp_path: Path, said: int, why: str) -> None:
    samples = [{"text": bytes(1 << 20)}]
    folder = write_mds(tmp_path / "a", {"text": "str"}, samples, 1, "gz")
    raw = json.loads((folder / "index.json").read_text())["shards"][0]["raw_data"]
    rewrite(folder, raw_data={**raw, "bytes": raw["bytes"] + said})
    with pytest.raises(ValueError, match=f"cannot be unpacked: it has {why}"):
        cp.MDSDataset(folder, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    rewrite(folder, compression="lzma")
    with pytest.raises(ValueError, match="by 'lzma', which is not known"):
        cp.MDSDataset(folder, cache=tmp_path / "cache")


def test_workers_elsewhere_open_the_same_below_their_root(
    folder: Path, tmp_path_factory: Any
) -> None:
    root = folder.parent
    data = cp.MDSDataset("mds", given, root, images=["image"])
    spec = json.loads(json.dumps(data.spec()))
    other = open_source(spec, root, (f"{__name__}:given",))
    assert other.fingerprint() == data.fingerprint()
    assert other.load(4, 0, 0) == data[4]
    for pattern, why in ((["../x"], "leaves the root"), (["mds", "x"], "give one folder")):
        with pytest.raises(ValueError, match=why):
            open_source({**spec, "pattern": pattern}, root, (f"{__name__}:given",))
    for images in (5, [5], {"image": 1}):
        with pytest.raises(ValueError, match="needed is a list of columns"):
            open_source({**spec, "images": images}, root, (f"{__name__}:given",))
    outside = tmp_path_factory.mktemp("outside")
    for name in ("index.json", "shard.00001.mds"):
        (folder / name).rename(outside / name)
        (folder / name).symlink_to(outside / name)
        with pytest.raises(ValueError, match="leaves the root"):
            cp.MDSDataset("mds", root=root)
        (folder / name).unlink()
        (outside / name).rename(folder / name)
    assert len(cp.MDSDataset("mds", root=root)) == 7


def test_what_is_data_of_the_same_bytes_is_the_same(folder: Path, tmp_path: Path) -> None:
    digest = cp.MDSDataset(folder).data_digest()
    assert cp.MDSDataset(folder).data_digest(3) != digest
    assert cp.MDSDataset(folder).data_digest(4) == ""
    path = folder / "shard.00002.mds"
    damaged = bytearray(path.read_bytes())
    damaged[4] += 1
    path.write_bytes(damaged)
    assert cp.MDSDataset(folder).data_digest() != digest
