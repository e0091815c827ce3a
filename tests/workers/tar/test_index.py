"""The header scan finds every member of every tar, and says where a damaged one is damaged."""

import gzip
import os
import tarfile

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.workers.sources import cache_files as kept_files, file_index
from counterpoise.workers.tar import index as tar_index
from counterpoise.workers.tar.index import open_index, scan
from tests.tars import write_tar

NAMES = st.text("abcé/xyz漢", min_size=1, max_size=150).map(lambda text: text.strip("/") or "a")


@pytest.fixture(autouse=True)
def kept_from_one_sample_on(monkeypatch):
    """Keep the indexes of these small shards too."""
    monkeypatch.setattr(file_index, "WORTH_KEEPING", 1)


def _contents(path, index):
    data = path.read_bytes()
    return {
        index.name(i): {m.extension: data[m.offset : m.offset + m.size] for m in index.sample(i)}
        for i in range(len(index))
    }


@given(
    keys=st.lists(NAMES, min_size=1, max_size=8, unique=True),
    kind=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    order=st.randoms(use_true_random=False),
    sizes=st.integers(0, 1500),
)
def test_every_member_is_found_whatever_names_sizes_and_order(
    tmp_path_factory, keys, kind, order, sizes
):
    wanted = {key: {"jpg": bytes([n]) * (sizes + n), "json": b"{}"} for n, key in enumerate(keys)}
    members = [(f"{key}.{ext}", body) for key in keys for ext, body in wanted[key].items()]
    order.shuffle(members)
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    write_tar(path, members, format=kind)
    index = scan(path)
    assert _contents(path, index) == wanted
    first = list(dict.fromkeys(name.rsplit(".", 1)[0] for name, _ in members))
    assert [index.name(i) for i in range(len(index))] == first


def test_keys_split_as_webdataset_splits_them(shard):
    import webdataset

    names = ["a.jpg", "d.v1/b.img0.PNG", "d.v1/b.json", "./c.tar.gz", "plain", ".hidden.txt", "e."]
    names += ["__meta__/x.json", "_y.txt"]
    path = shard("a.tar", [(name, b"x") for name in names])
    theirs = [
        (s["__key__"], {name for name in s if not name.startswith("__")})
        for s in webdataset.WebDataset(str(path), shardshuffle=False)
    ]
    index = scan(path)
    ours = [(index.name(i), {m.extension for m in index.sample(i)}) for i in range(len(index))]
    assert ours == theirs


@pytest.mark.parametrize("size", [100, 512, 600, 1024, 1100, 2000])
def test_a_truncated_shard_is_named_with_the_offset(shard, size):
    path = shard("a.tar", {"a.jpg": b"x" * 700, "b.jpg": b"y" * 10})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=rf"a\.tar is truncated: at byte {size // 1536 * 1536} "):
        scan(path)


def test_what_is_no_tar_is_refused(shard):
    path = shard("a.tgz", {"a.jpg": b"x"})
    path.write_bytes(gzip.compress(path.read_bytes()) * 20)
    with pytest.raises(ValueError, match=r"a\.tgz is no uncompressed tar file"):
        scan(path)


def test_a_damaged_header_is_named_with_its_offset(shard):
    path = shard("a.tar", {"a.jpg": b"x" * 700, "b.jpg": b"y"})
    data = bytearray(path.read_bytes())
    data[1540] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.tar is damaged at byte 1536 \(bad checksum\)"):
        scan(path)


def test_the_same_member_twice_is_an_error(shard):
    path = shard("a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.JPG", b"3")])
    with pytest.raises(ValueError, match=r"'a\.JPG' stands there twice .*bodies at 512 and 2560"):
        scan(path)


def test_an_index_is_kept_and_used_while_the_shard_stays_as_it_was(shard, monkeypatch):
    path = shard("a.tar", {"a.jpg": b"1"})
    index = open_index(path)
    assert path.with_name("a.tar.index.npz").exists()
    monkeypatch.setattr(tar_index, "scan", lambda _: pytest.fail("scanned again"))
    again = open_index(path)
    assert (again.name(0), again.sample(0), again.digest) == ("a", index.sample(0), index.digest)


def test_of_a_tiny_shard_no_index_is_kept(shard, monkeypatch):
    monkeypatch.undo()
    path = shard("a.tar", {f"{n}.jpg": b"1" for n in range(file_index.WORTH_KEEPING - 1)})
    assert len(open_index(path)) == file_index.WORTH_KEEPING - 1
    assert not path.with_name("a.tar.index.npz").exists()


def test_a_changed_shard_is_scanned_again(shard):
    path = shard("a.tar", {"a.jpg": b"1"})
    open_index(path)
    shard("a.tar", {"a.jpg": b"1", "b.jpg": b"2"})
    os.utime(path, ns=(0, 12345))
    assert len(open_index(path)) == 2


def test_arrays_are_read_back_only_about_the_same_state(tmp_path):
    path = tmp_path / "x.npz"
    assert kept_files.write_arrays(path, (1, 2), {"a": np.arange(3)})
    found = kept_files.read_arrays(path, (1, 2))
    assert found is not None
    assert found["a"].tolist() == [0, 1, 2]
    assert kept_files.read_arrays(path, (1, 3)) is None
    assert kept_files.read_arrays(tmp_path / "none.npz", (1, 2)) is None


def test_an_empty_or_small_compressed_shard_is_called_so(tmp_path):
    for name, data, what in (("e", b"", "empty"), ("z", gzip.compress(bytes(10240)), "compressed")):
        (tmp_path / f"{name}.tar").write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name}\.tar is no uncompressed tar file, .*{what}"):
            open_index(tmp_path / f"{name}.tar")
