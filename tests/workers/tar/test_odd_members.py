"""Members that are no plain files, and bytes after the end, are read right or named."""

import io
import re
import subprocess
import tarfile

import pytest

from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.index import scan


def tar(folder, *arguments):
    subprocess.run(["tar", "-C", folder, *arguments], check=True)


def keys(path):
    index = scan(path)
    return [index.name(row) for row in range(len(index))]


@pytest.fixture
def folder(tmp_path):
    """A folder d of two texts, and one of a megabyte with many holes."""
    (tmp_path / "d").mkdir()
    for name in ("a", "c"):
        (tmp_path / "d" / f"{name}.txt").write_text(name)
    with (tmp_path / "d" / "b.npy").open("wb") as file:
        for piece in range(40):
            file.seek(piece << 15)
            file.write(b"data" * 1024)
    return tmp_path


@pytest.mark.parametrize(
    "form",
    [
        ["--format=gnu"], ["--format=oldgnu"], ["--format=pax", "--sparse-version=0.0"],
        ["--format=pax", "--sparse-version=0.1"], ["--format=pax", "--sparse-version=1.0"],
    ],
    ids=lambda form: form[-1].removeprefix("--"),
)  # fmt: skip
def test_a_sparse_member_is_named_and_all_others_are_read(folder, form):
    path = folder / "a.tar"
    tar(folder, "--sparse", *form, "-cf", path, "d/a.txt", "d/b.npy", "d/c.txt")
    data = TarDataset(path)
    assert [data.key(index) for index in range(3)] == ["d/a", "d/b", "d/c"]
    assert (data[0]["txt"], data[2]["txt"]) == ("a", "c")
    wanted = r"sample 'd/b' of .*a\.tar: 'd/b\.npy' is stored sparse: write it as a plain file"
    for action in (data.load, data.probe):
        with pytest.raises(SampleError, match=wanted):
            action(1)


def test_an_incremental_dump_with_a_label_has_its_files(folder):
    path = folder / "a.tar"
    snapshot = f"--listed-incremental={folder / 'snapshot'}"
    (folder / "d" / "l.txt").symlink_to("x" * 150)  # which has a header of its own
    tar(folder, snapshot, "--label=volume.2026", "-cf", path, "d")
    assert sorted(keys(path)) == ["d/a", "d/b", "d/c", "d/l"]
    assert TarDataset(path)[0]["txt"] == "a"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"M", "the end of a file that begins in another volume"),
        (b"Z", "of the unknown type b'Z'"),
    ],
)
def test_a_member_without_bytes_of_its_own_is_named(tmp_path, kind, told):
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for name, classify_failure in (
            ("a.txt", tarfile.REGTYPE),
            ("a.jpg", kind),
            ("b.txt", b"7"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.size = classify_failure, 3 if classify_failure not in b"3456" else 0
            file.addfile(info, io.BytesIO(b"abc"))
    data = TarDataset(tmp_path / "a.tar")
    assert data[1]["txt"] == "abc"  # 7: a contiguous file, which is one as any other
    wanted = f"sample 'a' of .*: 'a.jpg' is {re.escape(told)}: write it as a plain file"
    with pytest.raises(SampleError, match=wanted):
        data[0]


@pytest.mark.parametrize("after", ["archive", "one more block", "line", "far"])
def test_bytes_after_the_end_are_an_error_that_says_where(shard, after):
    path = shard("a.tar", {"a.txt": b"x" * 600})
    whole = path.read_bytes()
    end = 512 + 1024
    rest = {
        "archive": whole + shard("b.tar", {"b.txt": b"y"}).read_bytes(),
        "one more block": whole[: end + 512] + whole[:end] + whole[end:],
        "line": whole + b"\n",
        "far": whole + bytes(3 << 20) + b"x",
    }
    path.write_bytes(rest[after])
    with pytest.raises(ValueError, match=rf"a\.tar goes on after its end mark at byte {end}, "):
        scan(path)
    path.write_bytes(rest[after][: end + 512])  # as the error says
    assert keys(path) == ["a"]


@pytest.mark.parametrize("zeros", [512, 1024, 10240, 10240 + 7, 3 << 20])
def test_any_zeros_end_an_archive(shard, zeros):
    path = shard("a.tar", {"a.txt": b"x" * 512})
    path.write_bytes(path.read_bytes()[:1024] + bytes(zeros))
    assert keys(path) == ["a"]


def test_archives_that_tar_has_joined_are_one(shard):
    path, other = shard("a.tar", {"a.txt": b"x"}), shard("b.tar", {"b.txt": b"y"})
    tar(path.parent, "--concatenate", "-f", path, other)
    assert keys(path) == ["a", "b"]


@pytest.mark.parametrize("size", ["-5", "many", "", "1" * 5000])
def test_a_size_that_is_none_is_named_with_its_place(tmp_path, size):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"size": size}
        file.addfile(info)
    with pytest.raises(ValueError, match=r"a\.tar: an extended header at 0 gives no size"):
        scan(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("name", "body", "value"),
    [
        ("txt", "hé".encode("utf-8-sig"), "hé"),
        ("text", "hé".encode("utf-8-sig"), "hé"),
        ("caption", b"a cat", "a cat"),
        ("cls", b"\xef\xbb\xbf7\r\n", 7),
        ("json", '{"a": "hé"}'.encode("utf-8-sig"), {"a": "hé"}),
        ("json", '{"a": "hé"}'.encode("utf-16"), {"a": "hé"}),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_text(shard, name, body, value):
    assert TarDataset(shard("a.tar", {f"a.{name}": body}))[0][name] == value
