"""A link in a shard stands for the bytes of a member there, or its sample cannot be used."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from counterpoise.workers.sources import cache_files
from counterpoise.workers.sources.failures import SkippedSample
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.tar import index as tar_index
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.tar.index import open_index
from counterpoise.workers.vision_language.transform import VisionLanguage

HARD, SOFT = tarfile.LNKTYPE, tarfile.SYMTYPE
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def written(path, *members, form=tarfile.PAX_FORMAT):
    """Write a shard of files (name, bytes), and of links and folders (name, kind, target)."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, kind, *target in members:
            info = tarfile.TarInfo(name)
            body = kind if kind not in (HARD, SOFT, tarfile.DIRTYPE) else b""
            info.size = len(body)
            if not body:
                info.type, info.linkname = kind, "".join(target)
            tar.addfile(info, io.BytesIO(body))
    return path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("d/b.txt", HARD, "d/a.txt"), ("./d/b.txt", HARD, "./d/a.txt"), ("d/b.txt", SOFT, "a.txt"),
        ("d/b.txt", SOFT, "./x/../a.txt"), ("e/f/b.txt", SOFT, "../../d/a.txt"),
        ("b.txt", SOFT, "blobs/0a1b"), ("folder/b.txt", SOFT, "../d/a.txt"),
        ("b.txt", SOFT, "/absolute"), ("n" * 90 + "/b.txt", HARD, "x" * 90),
    ],
)  # fmt: skip
@pytest.mark.parametrize("late", [False, True])
def test_a_link_has_the_bytes_of_what_it_stands_for(tmp_path, name, kind, target, form, late):
    places = [
        ("d/a.txt", b"here"),
        ("blobs/0a1b", b"here"),
        ("/absolute", b"here"),
        ("x" * 90, b"here"),
    ]
    link = (name, kind, target)
    path = written(tmp_path / "a.tar", *([*places, link] if late else [link, *places]), form=form)
    data = TarDataset(path)
    found = {data.key(index): data[index]["txt"] for index in range(len(data))}
    assert found == {name.removesuffix(".txt"): "here", "d/a": "here"}


@pytest.mark.parametrize("size", [10, 1 << 16, 1 << 18])
def test_bytes_of_any_size_are_read_over_a_link(tmp_path, size):
    body = os.urandom(size)
    path = written(tmp_path / "a.tar", ("b.bin", SOFT, "a.bin"), ("a.bin", body))
    assert TarDataset(path)[0] == {"__key__": "b", "bin": body}


@pytest.mark.parametrize(
    ("kind", "target", "told"),
    [
        (HARD, "base/a.txt", "'base/a.txt'"), (SOFT, "/etc/passwd", "'/etc/passwd'"),
        (SOFT, "../../secret", "'../../secret'"), (SOFT, "b.txt", "'b.txt'"),
        (SOFT, "circle", "'circle'"), (HARD, "", "'.'"), (SOFT, "A.TXT", "'A.TXT'"),
    ],
)  # fmt: skip
def test_a_link_to_no_member_is_a_sample_that_cannot_be_used(tmp_path, kind, target, told):
    around = ("circle", SOFT, "circle2"), ("circle2", SOFT, "circle")
    path = written(tmp_path / "a.tar", ("b.txt", kind, target), ("b.cls", b"77"), *around)
    data = TarDataset(path)
    assert [data.key(index) for index in range(len(data))] == ["b"]
    for action in (data.load, data.raw, data.probe):
        with pytest.raises(SampleError, match=r"sample 'b' of .*a\.tar: 'b\.txt' is a link") as got:
            action(0)
        assert told in str(got.value)
    letter = SkippedSample.from_error(got.value, "0")
    assert (letter.key, letter.kind, letter.source) == ("b", "data", str(path))


def test_a_link_to_a_name_that_stands_there_twice_is_not_guessed(tmp_path):
    members = ("blob", b"old"), ("a.txt", HARD, "blob"), ("blob", b"new")
    with pytest.raises(SampleError, match="it is a link, and 'blob' stands in the shard twice"):
        TarDataset(written(tmp_path / "a.tar", *members))[0]


def test_a_link_beside_a_member_of_its_name_is_an_error(tmp_path):
    members = ("a.txt", b"one"), ("b.txt", b"two"), ("a.TXT", HARD, "b.txt")
    with pytest.raises(ValueError, match=r"'a\.TXT' stands there twice"):
        TarDataset(written(tmp_path / "a.tar", *members))


def pairs(folder, picture):
    """Make two conversations about one picture, which has two names."""
    folder.mkdir()
    (folder / "a.png").write_bytes(picture(32, 32))
    os.link(folder / "a.png", folder / "b.png")
    said = [{"from": "human", "value": "<image> What is it?"}, {"from": "gpt", "value": "Red."}]
    for key in "ab":
        (folder / f"{key}.json").write_text(json.dumps({"conversations": said}))
    return folder


def test_pictures_that_gnu_tar_has_stored_as_links_are_there(tmp_path, picture):
    folder, path = pairs(tmp_path / "pairs", picture), tmp_path / "a.tar"
    # A file that is named twice becomes a link to itself.
    subprocess.run(["tar", "-C", folder, "-cf", path, ".", "./a.json"], check=True)
    data = TarDataset(path, VisionLanguage(tile_size=32, tokens_per_tile=4))
    first, second = data[0], data[1]
    assert data.probe(0).cost == data.probe(1).cost
    assert data.probe(0).cost["tiles"] == 1
    assert all((first[name] == second[name]).all() for name in first)


def test_links_and_faults_are_in_the_kept_index(tmp_path, monkeypatch):
    members = [("a.txt", b"here"), *((f"b{n}.txt", SOFT, "a.txt") for n in range(9))]
    path = written(tmp_path / "a.tar", *members, ("é.txt", SOFT, "ö"))
    made = open_index(path)
    monkeypatch.setattr(tar_index, "scan", lambda _: pytest.fail("scanned again"))
    kept = open_index(path)
    assert kept.faults == made.faults != {}
    assert kept.digest == made.digest
    assert [kept.sample(row) for row in range(11)] == [made.sample(row) for row in range(11)]


def test_an_index_that_an_earlier_version_has_kept_is_not_believed(tmp_path, monkeypatch, caplog):
    members = [(f"{n}.txt", b"here") for n in range(8)]
    path = written(tmp_path / "a.tar", *members)
    with monkeypatch.context() as earlier:
        earlier.setattr(cache_files, "MAGIC", b"counterpoise 2 ")
        open_index(path)
    written(
        tmp_path / "b.tar", *((f"{n}.txt", b"here") for n in range(8)), ("b.txt", HARD, "0.txt")
    )
    os.utime(tmp_path / "b.tar", ns=(0, path.stat().st_mtime_ns))
    (tmp_path / "b.tar").replace(path)
    assert len(open_index(path)) == 9
    assert "of another version: it is made again" in caplog.text
