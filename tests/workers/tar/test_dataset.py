"""Shards as a dataset: any sample alone, the same for everybody, errors with names."""

import functools
import json
import multiprocessing
import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.workers.sources.data_files import MOST_OPEN
from counterpoise.workers.sources.interface import Probe, SampleError
from counterpoise.workers.sources.plain import as_source
from counterpoise.workers.sources.randomness import generator
from counterpoise.workers.sources.registry import TRANSFORMS
from counterpoise.workers.tar.dataset import TarDataset
from counterpoise.workers.vision_language.transform import VisionLanguage
from tests.tars import write_tar

SMALL = VisionLanguage(tile_size=8, max_tiles=4, tokens_per_tile=2)


def noisy(raw, rng):
    return raw["__key__"], int(rng.integers(1 << 62))


def dicing(raw):
    return raw["__key__"], random.random(), float(np.random.rand())


def shouted(raw, mark="!"):
    return raw["txt"].upper() + mark


@pytest.fixture
def texts(shard):
    """Two shards with the texts a0 a1 and b0 b1 b2."""
    for name, count in (("a", 2), ("b", 3)):
        shard(f"{name}.tar", {f"{name}{n}.txt": f"{name} {n}".encode() for n in range(count)})
    return shard("b.tar", {f"b{n}.txt": f"b {n}".encode() for n in range(3)}).parent


def test_samples_stand_in_order_of_shards_and_members(texts):
    dataset = TarDataset(f"{texts}/*.tar")
    assert [dataset.key(i) for i in range(len(dataset))] == ["a0", "a1", "b0", "b1", "b2"]
    # by the sequence protocol, which mypy does not know
    every: Any = dataset
    assert [sample["txt"] for sample in every] == ["a 0", "a 1", "b 0", "b 1", "b 2"]
    for outside in (-1, 5):
        with pytest.raises(IndexError):
            dataset[outside]


def test_it_is_a_source_and_a_torch_dataset(texts):
    from torch.utils.data import DataLoader

    dataset = TarDataset(texts, shouted)
    assert as_source(dataset) is dataset
    every: Any = dataset
    assert list(DataLoader(every, batch_size=5)) == [["A 0!", "A 1!", "B 0!", "B 1!", "B 2!"]]


def test_without_a_transform_members_are_decoded(shard, picture):
    path = shard(
        "a.tar", {"k.jpg": picture(9, 7, "JPEG"), "k.json": {"n": 1}, "k.cls": b"3", "k.bin": b"\0"}
    )
    dataset = TarDataset(path)
    sample = dataset[0]
    assert (sample["jpg"].shape, sample["jpg"].dtype) == ((7, 9, 3), np.uint8)
    assert {name: sample[name] for name in ("__key__", "json", "cls", "bin")} == {
        "__key__": "k",
        "json": {"n": 1},
        "cls": 3,
        "bin": b"\0",
    }
    assert dataset.probe(0).cost["pixels"] == 63


@given(order=st.randoms(use_true_random=False))
def test_members_may_stand_in_any_order(tmp_path_factory, picture, order):
    members = [(f"k{n}.{ext}", n, ext) for n in range(4) for ext in ("img0.png", "img1.png", "txt")]
    order.shuffle(members)
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    bodies = {e: lambda n: picture(4, 4, seed=n) for e in ("img0.png", "img1.png")}
    bodies["txt"] = lambda n: str(n).encode()
    write_tar(path, [(name, bodies[ext](n)) for name, n, ext in members])
    dataset = TarDataset(path, cache=path.parent)
    for index in range(4):
        raw = dataset.raw(index)
        n = int(raw["txt"])
        assert raw["__key__"] == f"k{n}"
        assert raw["img0.png"] == raw["img1.png"] == picture(4, 4, seed=n)


def test_only_the_samples_own_bytes_are_read(texts, monkeypatch):
    dataset = TarDataset(texts)
    read, pread = [], os.pread

    def counting(fd, size, offset):
        read.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counting)
    assert dataset[3]["txt"] == "b 1"
    assert read == [512 + 3]  # with its header, by which it is known


def test_random_transforms_follow_from_seed_epoch_and_key(texts):
    for transform in (noisy, dicing):
        dataset, other = TarDataset(texts, transform), TarDataset(texts, transform)
        first = [dataset.load(i, epoch=1, seed=2) for i in range(5)]
        assert [other.load(i, 1, 2) for i in reversed(range(5))] == first[::-1]
        assert dataset[0] == dataset.load(0, epoch=0, seed=0)
        assert len({dataset.load(i, e, s) for i in range(5) for e in (0, 1) for s in (0, 1)}) == 20
    assert noisy({"__key__": "a0"}, generator(2, 1, "a0")) == TarDataset(texts, noisy).load(0, 1, 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_survives_other_processes(texts, method):
    dataset = TarDataset(texts, SMALL)
    here = [dataset[index]["input_ids"].tolist() for index in range(5)]
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        there = list(pool.map(TarDataset.__getitem__, [dataset] * 5, range(5)))
    assert [sample["input_ids"].tolist() for sample in there] == here


def test_pickled_it_needs_no_index_file(texts):
    dataset = pickle.loads(pickle.dumps(TarDataset(texts, shouted)))
    for kept in texts.glob("*.npz"):
        kept.unlink()
    assert dataset[2] == "B 0!"


def test_many_shards_do_not_exhaust_the_files(shard):
    for n in range(80):
        folder = shard(f"s{n:02}.tar", {f"k{n}.txt": str(n).encode()}).parent
    dataset = TarDataset(folder)
    assert [int(sample["txt"]) for sample in dataset] == list(range(80))  # type: ignore[attr-defined]
    assert len(dataset._files._opened) == MOST_OPEN


def test_a_cost_function_measures_what_was_decoded(texts):
    dataset = TarDataset(texts, shouted, cost=lambda text: {"tokens": len(text)})
    assert dataset.decode_first
    assert dataset.probe(0) == Probe("a0", {"tokens": 4}, 4)
    assert dataset.measure(dataset[0]) == {"tokens": 4}
    assert TarDataset(texts, shouted).probe(0) == Probe("a0", {"samples": 1})


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"k.json": b"{not json"}, "json: JSONDecodeError"),
        ({"k.json": b"[" * 100_000}, "json: RecursionError"),
        ({"k.txt": b"\xff\xfe"}, "txt: UnicodeDecodeError"),
        ({"k.cls": b"x"}, "cls: ValueError"),
        ({"k.pyd": b"cos\nsystem"}, "pyd: pickled members are refused"),
        ({"k.meta.pkl": b"cos\nsystem"}, "meta.pkl: pickled members are refused"),
        ({"k.npy": b"\x93NUMPY\x01\x00"}, "npy: ValueError"),
        ({"k.jpg": b"", "k.txt": b"x"}, "jpg: UnidentifiedImageError: cannot identify image file"),
        ({"k.json": {"id": 1}}, "no text"),
        ({"k.txt": b"<image>"}, "1 <image> placeholders for 0 images"),
    ],
)
def test_broken_samples_are_named_with_the_reason(shard, members, reason):
    dataset = TarDataset(shard("a.tar", members), SMALL)
    for use in (dataset.load, dataset.probe):
        with pytest.raises(SampleError) as caught:
            use(0)
        assert caught.value.key == "k"
        assert caught.value.reason.startswith(reason)


def test_a_broken_image_is_named_without_a_transform_too(shard, picture):
    dataset = TarDataset(shard("a.tar", {"k.img3.png": picture()[:60]}))
    with pytest.raises(SampleError, match=r"sample 'k' of .*a\.tar: img3\.png: "):
        dataset[0]


def test_no_samples_is_an_error(shard):
    with pytest.raises(ValueError, match=r"no samples in 1 files; members must be named"):
        TarDataset(shard("a.tar", {"README": b"x"}))


def test_a_key_in_two_shards_is_an_error(shard):
    first = shard("a.tar", {"k.txt": b"1"})
    shard("b.tar", {"j.txt": b"1", "k.jpg": b"2"})
    with pytest.raises(ValueError, match=r"key 'k' stands in .*a\.tar and in .*b\.tar"):
        TarDataset(first.parent)


def test_the_fingerprint_follows_contents_and_transform_but_not_the_place(shard):
    members = {"k.txt": b"1", "l.txt": b"2"}
    prints = [
        TarDataset(shard(name, content), transform).fingerprint()
        for name, content, transform in (
            ("x/a.tar", members, SMALL),
            ("y/z.tar", members, SMALL),
            ("a.tar", {"k.txt": b"1", "m.txt": b"2"}, SMALL),
            ("b.tar", members, VisionLanguage(tile_size=16)),
            ("c.tar", members, shouted),
            ("d.tar", members, functools.partial(shouted, mark="?")),
            ("e.tar", members, None),
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 6


def test_a_spec_opens_the_same_source_elsewhere(texts):
    dataset = TarDataset(f"{texts}/*.tar", SMALL)
    spec = json.loads(json.dumps(dataset.spec()))
    again = TarDataset.from_spec(spec, root=texts)
    assert again.fingerprint() == dataset.fingerprint()
    assert np.array_equal(again[3]["input_ids"], dataset[3]["input_ids"])


def test_a_relative_pattern_means_the_workers_own_root(texts):
    spec = {"source": "tar", "pattern": "{a,b}.tar", "transform": None}
    assert len(TarDataset.from_spec(spec, texts)) == 5
    with pytest.raises(ValueError, match="leaves the root"):
        TarDataset.from_spec({**spec, "pattern": "../*.tar"}, texts)


def test_a_spec_names_only_registered_transforms(texts):
    name = "posixpath:join"
    spec = {"source": "tar", "pattern": "a.tar", "transform": {"name": name, "args": {}}}
    with pytest.raises(
        ValueError, match=rf"no such transform: '{name}'; registered are {TRANSFORMS[0]}"
    ):
        TarDataset.from_spec(spec, texts)
    assert TarDataset.from_spec(spec, texts, allowed=[name]).transform is os.path.join


@pytest.mark.parametrize(
    "spec",
    [{}, {"source": "zip", "pattern": "a"}, {"source": "tar", "pattern": [1]}, {"source": "tar"}],
)
def test_a_malformed_spec_is_refused(spec, tmp_path):
    with pytest.raises(ValueError, match=r"is given as|is a text"):
        TarDataset.from_spec(spec, tmp_path)
