"""Hostile jobs and shards: nothing is executed, nothing outside the root is read."""

import io
import json
import os
import pickle
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.workers.daemon.source_handler import SourceHandler
from counterpoise.workers.jsonl.dataset import JsonlDataset
from counterpoise.workers.sources import cache_files
from counterpoise.workers.sources.cache_files import identity, kept_path
from counterpoise.workers.sources.file_patterns import MAX_NAMES, find_shards
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.registry import open_source
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.transform import VisionLanguage

PLAN = PlanConfig(1, 1, 1, ("tokens",), (None,))
EXECUTING = {
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
}


class Watch:
    """What the interpreter does while it is on, by its audit events."""

    def __init__(self):
        self.thread = None
        self.opened = []
        self.executed = []
        sys.addaudithook(self._hear)

    def __enter__(self):
        self.opened.clear()
        self.executed.clear()
        self.thread = threading.get_ident()
        return self

    def __exit__(self, *_):
        self.thread = None

    def _hear(self, event, arguments):
        if self.thread != threading.get_ident():
            return
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self.opened.append(Path(os.fsdecode(arguments[0])).resolve())
        elif event in EXECUTING:
            self.executed.append((event, arguments))


WATCH = Watch()


@pytest.fixture
def root(tmp_path):
    """A root with a shard, a link that leaves it, and a shard and a secret beside it."""
    folder = tmp_path / "root"
    for name in ("root", "outside"):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name / "a.tar", {"0.txt": b"hello", "0.cls": b"1"})
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "passwd.tar").symlink_to("/etc/passwd")
    return folder


def write_shard(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def job(**source):
    told = {"source": "tar", "pattern": ["a.tar"], "transform": None, **source}
    return to_json(JobSpec(PLAN, source=told))


def handler(root):
    return SourceHandler(None, (), 0, local=False, build=lambda told: open_source(told, root))


# --- jobs


@pytest.mark.parametrize(
    "pattern",
    [
        "../../etc/passwd",
        "../outside/a.tar",
        "../outside/*.tar",
        "/etc/passwd",
        "/etc/*",
        "link/a.tar",
        "link/*",
        "passwd.tar",
        "*/../../outside/a.tar",
        "link/../a.tar",
        "{a.tar,../outside/a.tar}",
        "pipe:cat /etc/passwd",
        "pipe:touch executed",
        "http://127.0.0.1:1/a.tar",
        "file:///etc/passwd",
        "~/a.tar",
        "a.tar\0",
        "",
        "{1..99999999999}",
        "{x," + "{a,b}" * 50 + "}",
        "[" * 5000,
        "{" * 5000,
        "{" * 5000 + "}" * 5000,
        "{1..2" * 20_000 + "}" * 20_000,
        "**/" * 500 + "a.tar",
        "x" * 100_000,
    ],
)
def test_a_pattern_that_leaves_the_root_reads_nothing(root, pattern):
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        handler(root).open(job(pattern=["a.tar", pattern]))
    assert not watch.executed
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize(
    "transform",
    [
        "os:system",
        "subprocess:run",
        "builtins:eval",
        "pickle:loads",
        "counterpoise.workers.sources.registry:importlib",
        "counterpoise.workers.codec.frames:copyreg",
        "antigravity:x",
        "os.path:os.system",
        "__main__:x",
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_transform_that_nobody_registered_is_not_even_imported(root, transform, nested):
    spec = {"name": transform, "args": {"command": "touch executed"}}
    if nested:
        name = "counterpoise.workers:VisionLanguage"
        spec = {"name": name, "args": {"tokenizer": spec}}
    before = set(sys.modules)
    with WATCH as watch, pytest.raises(ValueError, match="no such transform"):
        handler(root).open(job(transform=spec))
    assert not watch.executed
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize(
    "told",
    [
        {"source": "python"},
        {"pattern": 7},
        {"pattern": [7]},
        {"pattern": None},
        {"transform": "os:system"},
        {"transform": ["os:system"]},
        {"transform": {"name": ["os:system"], "args": {}}},
    ],
)
def test_a_malformed_description_is_one_clear_error(root, told):
    with WATCH as watch, pytest.raises((ValueError, TypeError)) as raised:
        handler(root).open(job(**told))
    assert not watch.executed
    assert len(str(raised.value)) < 500


def test_too_many_names_are_refused_before_they_are_made(root):
    with pytest.raises(ValueError, match=f"more than {MAX_NAMES} names"):
        find_shards("{1..2000000}.tar", root)


# --- shards


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
    write_shard(root / "a.tar", {"0.txt": b"hello", f"0.{extension}": evil})
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
    write_shard(root / "a.tar", {f"0.{extension}": evil})
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
        npy((1 << 40,)),
        npy((1 << 20, 1 << 20, 1 << 20)),
        npy((4,), data=b"short"),
        npy((4,), "|O", b"\x80\x05N."),
        npy((-4, -4)),
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY",
        b"",
    ],
)
def test_an_array_that_is_not_what_it_says_is_a_broken_sample(root, data):
    write_shard(root / "a.tar", {"0.npy": data})
    with WATCH as watch, pytest.raises(SampleError, match="npy"):
        TarDataset("a.tar", root=root).load(0)
    assert not watch.executed


def test_an_honest_array_is_read(root):
    write_shard(root / "a.tar", {"0.npy": npy((2,), data=np.ones(2, "<f4").tobytes())})
    assert TarDataset("a.tar", root=root).load(0)["npy"].tolist() == [1, 1]


def test_members_named_outside_are_only_names(root):
    write_shard(root / "a.tar", {"../../secret.txt": b"mine", "/etc/passwd.txt": b"mine"})
    with WATCH as watch:
        dataset = TarDataset("a.tar", root=root)
        assert [dataset.load(index)["txt"] for index in range(2)] == ["mine", "mine"]
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


def test_postscript_that_says_it_is_a_picture_starts_no_interpreter(root):
    file = io.BytesIO()
    Image.new("RGB", (40, 40)).save(file, "EPS")
    write_shard(root / "a.tar", {"0.txt": b"hello", "0.jpg": file.getvalue()})
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
    write_shard(root / "a.tar", members | {"0.png": image.getvalue()})
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
    path.write_bytes(cache_files._sealed(path.read_bytes()))
    with WATCH as watch:
        assert TarDataset("a.tar", root=root).load(0)["txt"] == "hello"
    assert not watch.executed
    path.write_bytes(evil)
    with WATCH as watch:
        assert len(TarDataset("a.tar", root=root)) == 1
    assert not watch.executed


def test_deep_json_is_a_broken_sample(root):
    write_shard(root / "a.tar", {"0.json": b"[" * 100_000, "1.json": json.dumps({"a": 1}).encode()})
    dataset = TarDataset("a.tar", root=root)
    with pytest.raises(SampleError, match="json"):
        dataset.load(0)
    assert dataset.load(1)["json"] == {"a": 1}


# --- records in JSON


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "/etc/passwd", "link/a.tar", "passwd.tar", "x/../../secret", "~/a.png",
        "pipe:cat /etc/passwd", "http://127.0.0.1:1/a.png", "file:///etc/passwd", "a\0.png",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_part", [False, True])
def test_a_record_that_names_what_is_outside_reads_nothing(root, name, is_part):
    said = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": name}}]}]
    record = {"messages": said} if is_part else {"text": "a", "image": name}
    (root / "a.jsonl").write_text(json.dumps(record))
    served = handler(root)
    with WATCH as watch:
        served.open(job(source="jsonl", pattern=["a.jsonl"]))
        for action in (served.source.raw, served.source.probe, served.source.load):
            with pytest.raises(SampleError):
                action(0)
    assert isinstance(served.source, JsonlDataset)
    assert not watch.executed
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize("media", ["..", "/etc", "link", "../outside", 3, ["."], {}])
def test_a_folder_of_media_outside_is_refused(root, media):
    (root / "a.jsonl").write_text("{}")
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        handler(root).open(job(source="jsonl", pattern=["a.jsonl"], media=media))
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []


@pytest.mark.parametrize("pattern", ["../outside", "link", "/etc", "../outside/a.tar"])
def test_a_format_is_not_looked_for_outside(root, pattern):
    with WATCH as watch, pytest.raises((ValueError, OSError)):
        open_source({"pattern": [pattern], "transform": None}, root)
    assert [path for path in watch.opened if not path.is_relative_to(root)] == []
