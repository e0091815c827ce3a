"""Patterns name files, or say clearly why not."""

import os

import pytest

from counterpoise.workers.columns.parquet import ParquetDataset
from counterpoise.workers.jsonl.dataset import JsonlDataset
from counterpoise.workers.sources.file_patterns import find_shards
from counterpoise.workers.tar.dataset import TarDataset


@pytest.fixture
def folder(tmp_path):
    for name in ("m-00.tar", "m-01.tar", "m-02.tar", "n.tar", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.tar").touch()
    return tmp_path


def _names(found):
    return [path.name for path in found]


def test_a_path_a_glob_braces_and_a_list(folder):
    assert _names(find_shards(folder / "n.tar")) == ["n.tar"]
    assert _names(find_shards(f"{folder}/m-*.tar")) == ["m-00.tar", "m-01.tar", "m-02.tar"]
    assert _names(find_shards(f"{folder}/m-{{00..01}}.tar")) == ["m-00.tar", "m-01.tar"]
    both = [f"{folder}/n.tar", f"{folder}/m-{{00,02}}.tar"]
    assert _names(find_shards(both)) == ["m-00.tar", "m-02.tar", "n.tar"]


def test_a_folder_means_its_tars(folder):
    assert _names(find_shards(folder)) == ["m-00.tar", "m-01.tar", "m-02.tar", "n.tar"]
    assert len(find_shards(f"{folder}/**/*.tar")) == 5


def test_a_file_that_two_patterns_name_is_read_once(folder):
    assert len(find_shards([f"{folder}/m-*.tar", f"{folder}/m-00.tar"])) == 3


def test_what_is_kept_beside_shards_is_no_shard(folder):
    before = find_shards(f"{folder}/*.t*")
    (folder / "n.tar.index.npz").touch()
    (folder / "n.tar.0123.costs").touch()
    (folder / "notes.txt").unlink()
    assert set(before) - set(find_shards(f"{folder}/*")) == {folder / "notes.txt"}


def test_a_file_may_have_braces_in_its_name(folder):
    (folder / "odd{1..2}.tar").touch()
    assert _names(find_shards(f"{folder}/odd{{1..2}}.tar")) == ["odd{1..2}.tar"]


@pytest.mark.parametrize("pattern", ["gone.tar", "x*.tar", "m-{00..03}.tar", "sub/none"])
def test_what_is_not_there_is_an_error(folder, pattern):
    with pytest.raises(FileNotFoundError, match=r"no (such file|file matches).*check the path"):
        find_shards(f"{folder}/{pattern}")


@pytest.mark.parametrize(
    "pattern",
    ["pipe:cat x.tar", "s3://bucket/x.tar", "http://host/x.tar", "file:///x.tar", "gs://b/x"],
)
def test_urls_and_pipes_are_refused(pattern):
    with pytest.raises(ValueError, match="no local path"):
        find_shards(pattern)


@pytest.mark.parametrize("pattern", ["", [], [""]])
def test_no_pattern_is_an_error(pattern):
    with pytest.raises(ValueError, match="no data was named"):
        find_shards(pattern)


def test_unbalanced_braces_are_an_error():
    with pytest.raises(ValueError, match="braces"):
        find_shards("a{1..")


def test_a_root_bounds_what_is_read(folder):
    root = folder / "sub"
    assert _names(find_shards("*.tar", root)) == ["deep.tar"]
    assert _names(find_shards(str(root / "deep.tar"), root)) == ["deep.tar"]
    for outside in ("../n.tar", f"{folder}/n.tar", "../*.tar", "x/../../n.tar", "/etc/passwd"):
        with pytest.raises(ValueError, match="leaves the root"):
            find_shards(outside, root)


def test_a_link_out_of_the_root_is_not_followed(folder):
    (folder / "sub" / "link.tar").symlink_to(folder / "n.tar")
    with pytest.raises(ValueError, match="leaves the root"):
        find_shards("link.tar", folder / "sub")


def _unreadable_things():
    def link(target):
        return lambda path: path.symlink_to(target(path))

    def pointer(text):
        return lambda path: path.write_bytes(text)

    return {
        "a dangling link": link(lambda path: path.parent / ".git" / "gone"),
        "a loop of links": link(lambda path: path),
        "a pipe": os.mkfifo,
        "a folder": lambda path: path.mkdir(),
        "a pointer of DVC": lambda path: path.with_name(f"{path.name}.dvc").touch(),
        "a pointer of git-lfs": pointer(b"version https://git-lfs.github.com/spec/v1\noid sha256:"),
        "a pointer of git-annex": pointer(b"/annex/objects/MD5E-s7--0123.tar\n"),
    }


@pytest.mark.parametrize("thing", _unreadable_things())
@pytest.mark.parametrize("kind", [TarDataset, JsonlDataset, ParquetDataset])
@pytest.mark.parametrize("pattern", ["*{}", "", "{{a,b}}{}", "**/*{}"])
def test_a_shard_that_cannot_be_read_is_an_error_that_names_it(tmp_path, thing, kind, pattern):
    if thing == "a folder" and pattern.startswith("{"):
        return  # a folder that is named is read
    extension = kind.EXTENSIONS[0]
    (tmp_path / f"a{extension}").write_bytes(bytes(10240))
    _unreadable_things()[thing](tmp_path / f"b{extension}")
    with pytest.raises(FileNotFoundError, match=rf"b{extension}.* cannot be read: .*; fetch"):
        kind(f"{tmp_path}/{pattern.format(extension)}")


def test_a_link_to_a_folder_that_is_not_mounted_is_an_error_that_names_it(folder):
    (folder / "bucket").symlink_to(folder / "gone")
    for pattern in ("*/deep.tar", "*/*.tar", "{sub,bucket}/*.tar", "**/*.tar"):
        with pytest.raises(OSError, match=r"bucket"):
            find_shards(f"{folder}/{pattern}")


def test_what_is_called_no_shard_may_be_unreadable(folder):
    (folder / "README.md").symlink_to(folder / "gone")
    os.mkfifo(folder / "control")
    assert len(find_shards(folder)) == 4
    assert len(find_shards(f"{folder}/**/*.tar")) == 5
