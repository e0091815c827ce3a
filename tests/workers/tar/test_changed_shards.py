"""A shard that changes while it is in use is an error, and before that it is read anew."""

import os
import pickle
import random
import re
import tarfile
from typing import Any

import pytest

from counterpoise.loader import DataLoader, LoaderError
from counterpoise.workers import TarDataset
from counterpoise.workers.sources.cache_files import kept_path
from counterpoise.workers.sources.failures import DataChangedError, classify_failure
from tests.workers.conftest import Shard

SAMPLES = 24
CHANGED = "changed after it was indexed"
Contents = list[tuple[str, bytes]]


def contents(letter: str = "a") -> Contents:
    return [(f"{n:02}.txt", f"{n:02}{letter * 40}".encode()) for n in range(SAMPLES)]


def in_place(make: Shard, path, members: Contents) -> None:
    """Write over the shard's bytes, without another file."""
    other = make("other/b.tar", members)
    with path.open("r+b") as file:
        file.write(other.read_bytes())
        file.truncate()


def renamed(make: Shard, path, members: Contents) -> None:
    make("other/b.tar", members).rename(path)


def unseen(make: Shard, path, members: Contents) -> None:
    """Write over the bytes, and set the time back: from outside, nothing has changed."""
    before = path.stat()
    in_place(make, path, members)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def touched(make: Shard, path, members: Contents) -> None:
    os.utime(path, ns=(7, 7))


WAYS = [in_place, renamed, touched]
OTHERS = {
    "other bytes": contents("b"),
    "another order": contents("b")[::-1],
    "fewer": contents("b")[:7],
    "more": [*contents("b"), ("99.txt", b"99")],
    "other keys": [(f"k{name}", data) for name, data in contents("b")],
}


@pytest.fixture
def path(shard):
    return shard("a.tar", contents())


def texts(members: Contents) -> list[str]:
    return [data.decode() for _, data in members]


def first_of(samples: list[dict]) -> str:
    return samples[0]["txt"]


def loader_of(data: TarDataset, kind: str) -> DataLoader:
    workers = int(kind[-1])
    balance: Any = {"balance": "balanced", "shuffle": False} if kind.startswith("balanced") else {}
    return DataLoader(
        data, collate_fn=first_of, num_workers=workers, timeout=60 * bool(workers), **balance
    )


KINDS = ["plain 0", "plain 2", "balanced 0", "balanced 2"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", OTHERS)
def test_reading_what_has_changed_is_an_error_that_names_the_shard(path, shard, way, what):
    data = TarDataset(path)
    assert data[3]["txt"] == contents()[3][1].decode()
    way(shard, path, OTHERS[what])
    with pytest.raises(DataChangedError, match=f"{CHANGED}.*a.tar") as caught:
        data[3]
    assert classify_failure(caught.value) == "io"  # never a hole


def read_and_compare(data: TarDataset) -> None:
    for n in range(SAMPLES):
        assert data[n]["txt"].startswith(data.key(n))


@pytest.mark.parametrize("what", ["another order", "fewer", "other keys"])
@pytest.mark.parametrize("copied", [False, True])
def test_members_are_known_by_their_headers_where_nothing_shows_outside(path, shard, what, copied):
    data = TarDataset(path)
    unseen(shard, path, OTHERS[what])
    if copied:  # in another process mtime and inode are not compared
        data = pickle.loads(pickle.dumps(data))
    with pytest.raises(DataChangedError, match=CHANGED):
        read_and_compare(data)
    assert not kept_path(path, "index.npz").exists()
    assert [sample["txt"] for sample in map(TarDataset(path).load, range(3))] == texts(
        OTHERS[what]
    )[:3]


def test_a_copy_in_another_process_minds_sizes_alone(path, shard):
    data = TarDataset(path)
    sent = pickle.dumps(data)
    touched(shard, path, [])
    assert pickle.loads(sent)[3]["txt"] == texts(contents())[3]
    os.truncate(path, path.stat().st_size + 512)
    with pytest.raises(DataChangedError, match=CHANGED):
        pickle.loads(sent)[3]


def test_a_probe_of_what_has_changed_is_an_error(picture, shard):
    def images(seed):
        return [(f"{n}.png", picture(200, 100, seed=seed + n)) for n in range(SAMPLES)]

    path = shard("a.tar", images(0))
    data = TarDataset(path)
    assert data.probe(1).cost["pixels"] == 200 * 100
    in_place(shard, path, images(50))
    with pytest.raises(DataChangedError, match=CHANGED):
        data.probe(1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_changed_before_iterating_is_read_as_it_is(path, shard, kind):
    loader = loader_of(TarDataset(path), kind)
    assert list(loader) == texts(contents())
    renamed(shard, path, OTHERS["more"])
    assert sorted(loader) == sorted(texts(OTHERS["more"]))
    loader.close()


def test_persistent_workers_read_it_as_it_is(path, shard):
    loader = DataLoader(
        TarDataset(path), collate_fn=first_of, num_workers=1, persistent_workers=True
    )
    assert list(loader) == texts(contents())
    in_place(shard, path, OTHERS["fewer"])
    assert list(loader) == texts(OTHERS["fewer"])


SEEDS = [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 500))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_change_in_the_middle_of_a_run_is_never_silent(path, shard, seed):
    """Everything that was handed out is what was indexed; then there is an error, or the end."""
    draw = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    way, what = draw.choice(WAYS), draw.choice(list(OTHERS))
    before, found, at = texts(contents()), [], draw.randrange(1, SAMPLES)
    loader = loader_of(TarDataset(path), kind)
    batches = iter(loader)
    found += [next(batches) for _ in range(at)]
    way(shard, path, OTHERS[what])
    try:
        found += batches
    except (OSError, LoaderError) as error:
        assert re.search(f"{CHANGED}(.|\n)*a.tar", str(error))  # noqa: PT017
        assert set(found) < set(before)
    else:
        # Workers had read all of it by then.
        assert kind.endswith("2")
        assert sorted(found) == before
    loader.close()


def test_an_index_is_kept_about_what_was_scanned(shard, path):
    """A link, moved to another file, is another shard."""
    other = shard("b.tar", contents("b"))
    link = path.with_name("link.tar")
    link.symlink_to(path)
    data = TarDataset(link)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(DataChangedError, match=CHANGED):
        data[0]
    assert data.reopen_if_changed()
    assert data[0]["txt"] == texts(contents("b"))[0]
    assert not data.reopen_if_changed()
    assert tarfile.is_tarfile(other)
