"""Shards that name, hold or lead to what they should not: nothing is opened, nothing executed."""

import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from counterpoise.workers.sources import cache_files
from counterpoise.workers.sources.cache_files import identity, kept_path
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.transform import VisionLanguage
from tests.security.outside import WATCH, root as root
from tests.tars import write_tar


class Evil:
    """Executes a command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture
def evil(tmp_path):
    return pickle.dumps(Evil(f"touch {tmp_path}/executed"))


@pytest.mark.parametrize(
    "extension", ["pkl", "pickle", "pyd", "pth", "pt", "joblib", "PTH", "weights.pth", "seg.pkl"]
)
def test_pickled_members_are_refused_unread(root, evil, extension):
    write_tar(root / "a.tar", {"0.txt": b"hello", f"0.{extension}": evil})
    dataset = TarDataset("a.tar", root=root)
    with WATCH as watch:
        for action in (dataset.load, dataset.raw, dataset.probe):
            with pytest.raises(SampleError, match="pickled members are refused"):
                action(0)
    assert not watch.executed
    assert not (root.parent / "executed").exists()


@pytest.mark.parametrize(
    "extension", ["txt", "json", "cls", "npy", "jpg", "png", "bin", "npz", "dill"]
)
def test_a_pickle_under_another_name_is_not_unpickled(root, evil, extension):
    write_tar(root / "a.tar", {f"0.{extension}": evil})
    dataset = TarDataset("a.tar", root=root)
    with WATCH as watch:
        try:
            assert dataset.load(0)[extension] == evil
        except SampleError:
            assert extension not in ("bin", "npz", "dill")
    assert not watch.executed
    assert not (root.parent / "executed").exists()


def npy(shape, dtype="<f4", data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


@pytest.mark.parametrize(
    "data",
    [
        npy((1 << 40,)), npy((1 << 20, 1 << 20, 1 << 20)), npy((4,), data=b"short"),
        npy((4,), "|O", b"\x80\x05N."), npy((-4, -4)), b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", b"\x93NUMPY", b"",
    ],
)  # fmt: skip
def test_an_array_that_is_not_what_it_says_is_a_broken_sample(root, data):
    write_tar(root / "a.tar", {"0.npy": data})
    with WATCH as watch, pytest.raises(SampleError, match="npy"):
        TarDataset("a.tar", root=root).load(0)
    assert not watch.executed


def test_an_honest_array_is_read(root):
    write_tar(root / "a.tar", {"0.npy": npy((2,), data=np.ones(2, "<f4").tobytes())})
    assert TarDataset("a.tar", root=root).load(0)["npy"].tolist() == [1, 1]


def test_members_named_outside_are_only_names(root):
    write_tar(root / "a.tar", {"../../secret.txt": b"mine", "/etc/passwd.txt": b"mine"})
    with WATCH as watch:
        dataset = TarDataset("a.tar", root=root)
        assert [dataset.load(index)["txt"] for index in range(2)] == ["mine", "mine"]
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


def test_postscript_that_says_it_is_a_picture_starts_no_interpreter(root):
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "EPS")
    write_tar(root / "a.tar", {"0.txt": b"hello", "0.jpg": file.getvalue()})
    dataset = TarDataset("a.tar", VisionLanguage(tile_size=32, max_tiles=1), root=root)
    with WATCH as watch:
        for action in (dataset.probe, dataset.load):
            with pytest.raises(SampleError, match="0"):
                action(0)
    assert not watch.executed


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "0.txt"])
@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_shard_lead_nowhere_else(root, kind, target, form):
    with tarfile.open(root / "a.tar", "w", format=form) as tar:
        for name in ("0.json", "1.txt", "/etc/passwd.txt"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.devmajor, info.devminor = kind, target, 1, 5
            tar.addfile(info)
        info = tarfile.TarInfo("0.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    with WATCH as watch:
        dataset = TarDataset("a.tar", root=root)
        found = dict[str, object]()
        for index in range(len(dataset)):
            try:
                found[dataset.key(index)] = dataset.raw(index)["txt"]
            except SampleError as error:
                found[dataset.key(index)] = error
    inside = kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) and target == "0.txt"
    if not inside:
        assert {type(each) for each in found.values()} == {SampleError}
    elif kind == tarfile.LNKTYPE:
        assert {"1": "hello", "/etc/passwd": "hello"}.items() <= found.items()
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []
    assert sorted(path.name for path in root.iterdir() if path.is_symlink()) == [
        "link",
        "passwd.tar",
    ]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_kept_file_that_is_no_plain_file_is_neither_read_nor_written(root, kind):
    """Beside a shard lie its index and its costs: a link there could lead out of the root."""
    transform = VisionLanguage(tile_size=32, max_tiles=1, tokens_per_tile=4)
    image = io.BytesIO()
    Image.new("RGB", (40, 40)).save(image, "PNG")
    members = {f"{n}.txt": b"hello" for n in range(8)}  # an index is kept from 8 samples on
    write_tar(root / "a.tar", members | {"0.png": image.getvalue()})
    before = TarDataset("a.tar", transform, root=root)
    cost = before.probe(0)
    kept = [path for path in root.iterdir() if path.suffix in (".npz", ".costs")]
    assert len(kept) == 2
    outside = [root.parent / path.name for path in kept]
    held = [path.rename(root.parent / path.name).read_bytes() for path in kept]
    for path, other in zip(kept, outside, strict=True):
        if kind == "dangling":
            other.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(other)
    assert TarDataset("a.tar", transform, root=root).probe(0) == cost
    if kind == "link":
        assert [other.read_bytes() for other in outside] == held
        assert not any(path.is_symlink() for path in kept)
    elif kind == "dangling":
        assert not any(other.exists() for other in outside)


def test_a_kept_index_that_holds_a_pickle_is_not_believed(root, evil):
    shard = root / "a.tar"
    objects = np.array([Evil(f"touch {root.parent}/executed")], dtype=object)
    path = kept_path(shard, "index.npz")
    with path.open("wb") as file:
        np.savez(file, stamp=np.array(identity(shard)), names=objects)
    path.write_bytes(cache_files._seal(path.read_bytes()))
    with WATCH as watch:
        assert TarDataset("a.tar", root=root).load(0)["txt"] == "hello"
    assert not watch.executed
    path.write_bytes(evil)
    with WATCH as watch:
        assert len(TarDataset("a.tar", root=root)) == 1
    assert not watch.executed


def test_deep_json_is_a_broken_sample(root):
    write_tar(root / "a.tar", {"0.json": b"[" * 100_000, "1.json": json.dumps({"a": 1}).encode()})
    dataset = TarDataset("a.tar", root=root)
    with pytest.raises(SampleError, match="json"):
        dataset.load(0)
    assert dataset.load(1)["json"] == {"a": 1}
