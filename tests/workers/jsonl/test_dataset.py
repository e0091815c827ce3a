"""JSON with images beside it gives the samples of the tar that it was made of."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise
from counterpoise import Ranks
from counterpoise.workers import JsonlDataset, TarDataset, VisionLanguage
from counterpoise.workers.jsonl import dataset as jsonl_dataset
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.registry import open_source
from tests.tars import write_tar
from tests.workers.jsonl.repacked import FORMS, write_lines

SMALL = VisionLanguage(tile_size=8, max_tiles=4, tokens_per_tile=2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, picture):
    """Two shards: texts, documents, one image, several images."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in "ab":
        members = dict[str, bytes]()
        for n in range(7):
            count = n % 4
            said = [
                {"from": "human", "value": "<image>é" * count + f"question {n}"},
                {"from": "gpt", "value": f"answer {n}\n"},
            ]
            about: dict[str, Any] = {"conversations": said}
            if n == 5:
                about = {"document": f"text {n} " + "<image>" * count}
            members[f"{shard}{n}.json"] = json.dumps({**about, "source": shard}).encode()
            for k in range(count):
                kind = ("PNG", "JPEG")[k % 2]
                name = kind.lower() if count == 1 else f"img{k}.{kind.lower()}"
                image = picture(5 + n, 9 + 3 * k, kind, seed=n * 10 + k)
                members[f"{shard}{n}.{name}"] = image
        write_tar(folder / f"{shard}.tar", members)
    return TarDataset(folder, SMALL, cache=folder / "cache")


@pytest.fixture(scope="module", params=FORMS)
def folder(request, shards, tmp_path_factory):
    """The shards repacked."""
    return FORMS[request.param](shards, tmp_path_factory.mktemp(request.param))


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def keys(source):
    return [source.key(index) for index in range(len(source))]


def test_samples_costs_and_keys_are_those_of_the_tar(folder, shards):
    source = JsonlDataset(folder, SMALL)
    assert keys(source) == keys(shards)
    for index in range(len(shards)):
        assert source.probe(index) == shards.probe(index)
        assert same(source[index], shards[index])
    again = JsonlDataset(folder, SMALL)
    assert [again.known(index) for index in range(14)] == [shards.probe(n) for n in range(14)]


def test_without_a_transform_pixels_are_those_of_the_tar(folder, shards):
    source, tar = JsonlDataset(folder), TarDataset(shards.pattern, cache=shards.cache)
    for index in range(len(tar)):
        images = [value for value in tar[index].values() if isinstance(value, np.ndarray)]
        found = [value for value in source[index].values() if isinstance(value, np.ndarray)]
        assert len(images) == len(found)
        assert all(map(np.array_equal, images, found))
        assert source.probe(index).cost["pixels"] == tar.probe(index).cost["pixels"]


def test_a_copy_by_pickle_or_by_description_is_the_same(folder, shards):
    source = JsonlDataset(folder, SMALL)
    copies = [
        pickle.loads(pickle.dumps(source)),
        open_source(source.spec(), None),
        open_source({**source.spec(), "pattern": ["."]}, folder),
    ]
    for copy in copies:
        assert isinstance(copy, JsonlDataset)
        assert copy.fingerprint() == source.fingerprint()
        assert copy.data_digest() == source.data_digest()
        assert same(copy[3], shards[3])


def loop(data, **options):
    import counterpoise as cp

    balance = cp.Balance(budgets={"tiles": 12, "tokens": 400}, accumulate="auto",
                         samples_per_step=3)  # fmt: skip
    loader = cp.DataLoader(data, balance=balance, shuffle=True, collate_fn=list, **options)
    return [(info.keys, [each["input_ids"].tolist() for each in batch])
            for step in loader.steps()
            for batch, info in zip(step.microbatches, step.infos, strict=True)]  # fmt: skip


def test_a_balanced_loop_delivers_what_it_does_from_the_tar(folder, shards):
    assert loop(JsonlDataset(folder, SMALL)) == loop(shards)


# --- awkward files


@pytest.fixture
def lines(tmp_path):
    def make(*found, name="a.jsonl", **options):
        return JsonlDataset(write_lines(tmp_path / name, list(found)), **options)

    return make


def reason(source, index):
    with pytest.raises(SampleError) as raised:
        source.raw(index)
    assert raised.value.key == source.key(index)
    assert raised.value.source == source.locate_file(index)
    return raised.value.reason


def test_broken_records_are_broken_samples_and_others_are_fine(lines, tmp_path):
    source = lines(
        {"text": "a"}, b"", b"[1]", b'"text"', b'{"text": "\xff"}', b'{"text": ',
        {"text": "b", "image": "gone.png"}, {"text": "c\r"}, b"[" * 100_000, b"{}\r",
    )  # fmt: skip
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"text": "torn')
    source = JsonlDataset(tmp_path / "a.jsonl")
    assert [source[index]["json"] for index in (0, 6, 8)] == [{"text": "a"}, {"text": "c\r"}, {}]
    wrong = {index: reason(source, index) for index in (1, 2, 3, 4, 5, 7, 9)}
    assert wrong[1] == "record 3 is a list, needed is a JSON object"
    assert wrong[2] == "record 4 is a str, needed is a JSON object"
    assert "record 5 is no JSON ('utf-8' codec can't decode byte 0xff" in wrong[3]
    assert "record 6 is no JSON (Expecting value" in wrong[4]
    assert wrong[5] == f"'gone.png' is no file below {tmp_path}"
    assert "recursion" in wrong[7]
    assert "record 11 is no JSON (Unterminated string" in wrong[9]
    assert keys(source)[9] == "a.jsonl:11"


def test_a_huge_record_is_a_broken_sample(lines, monkeypatch):
    source = lines({"text": "x" * 100}, {"text": "a"})
    monkeypatch.setattr(jsonl_dataset, "MOST_BYTES", 50)
    assert reason(source, 0) == "record 1 has 112 bytes, 50 are read at most"
    assert source[1]["json"] == {"text": "a"}


def test_empty_files_have_no_samples_and_all_empty_is_an_error(lines, tmp_path):
    write_lines(tmp_path / "b.jsonl", [])
    with pytest.raises(ValueError, match="no samples in 1 files"):
        JsonlDataset(tmp_path / "b.jsonl")
    lines({"text": "a"})
    source = JsonlDataset(tmp_path)
    assert len(source) == 1
    assert source.data_digest(1)


def test_an_id_in_two_files_is_an_error_that_names_both(lines, tmp_path):
    lines({"id": 1}, name="a.jsonl")
    lines({"id": 1}, name="b.jsonl")
    with pytest.raises(ValueError, match=r"key '1' stands in .*a.jsonl and in .*b.jsonl; .*key="):
        JsonlDataset(tmp_path)
    assert keys(JsonlDataset(tmp_path, key="")) == ["a.jsonl:1", "b.jsonl:1"]


def test_a_folder_means_its_jsonl_else_its_json(lines, tmp_path):
    lines({"id": "json"}, name="b.json")
    assert keys(JsonlDataset(tmp_path)) == ["json"]
    lines({"id": "jsonl"}, name="a.jsonl")
    assert keys(JsonlDataset(tmp_path)) == ["jsonl"]


def test_a_file_that_changes_is_an_error_and_then_indexed_again(lines, tmp_path):
    source = lines({"id": "a", "text": "1"}, {"id": "b", "text": "2"})
    assert source.reopen_if_changed() is False
    write_lines(tmp_path / "a.jsonl", [{"id": "c", "text": "33"}])
    with pytest.raises(DataChangedError, match="it changed after it was indexed"):
        source.raw(0)
    assert source.reopen_if_changed()
    assert keys(source) == ["c"]


def test_workers_read_no_more_than_the_record(lines, monkeypatch):
    source, asked = lines(*({"text": str(n)} for n in range(50))), list[int]()
    read = source._files.read_range

    def counted(path, offset, size):
        asked.append(size)
        return read(path, offset, size)

    monkeypatch.setattr(source._files, "read_range", counted)
    assert source[40]["json"] == {"text": "40"}
    assert asked == [14]


# --- media, and what records may not name


@pytest.fixture
def tree(tmp_path, picture):
    """A root with records and images, and images outside of it."""
    for name in ("root/set/images", "outside"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("root/set/images/a.png", "root/set/b.png", "root/c.png", "outside/o.png"):
        (tmp_path / name).write_bytes(picture(3, 4))
    root = tmp_path / "root"
    (root / "set" / "leaves").symlink_to(tmp_path / "outside")
    (root / "set" / "leaves.png").symlink_to(tmp_path / "outside" / "o.png")
    (root / "set" / "inner").symlink_to(root)
    os.mkfifo(root / "set" / "pipe.png")
    return root


def with_image(tree, name, **options):
    path = write_lines(tree / "set" / "a.jsonl", [{"text": "", "image": name}])
    if "root" in options:
        path = path.relative_to(options["root"])
    return JsonlDataset(path, **options)


FINE = ["images/a.png", "./b.png", "images/../b.png", "inner/c.png", "images//a.png"]


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("has_root", [False, True])
def test_media_are_read_beside_the_records(tree, name, has_root):
    source = with_image(tree, name, **({"root": tree} if has_root else {}))
    assert source[0]["png"].shape == (4, 3, 3)
    assert source.probe(0).cost["pixels"] == 12


REFUSED = {
    "../c.png": "leaves .*set", "images/../../c.png": "leaves .*set", "/etc/passwd": "leaves .*set",
    "https://example.com/a.png": "is a URL, and nothing is fetched",
    "file:///etc/passwd": "is a URL", "images": "is no (plain )?file",
    "pipe.png": "is no plain file", "": "is '': needed is a path", ".": "leaves", "a\0.png": "null",
    "x" * 5000: "is no file", "b.png/x.png": "is no file", "\ud800.png": "surrogates|is no file",
}  # fmt: skip


@pytest.mark.parametrize("has_root", [False, True])
@pytest.mark.parametrize("name", REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_below_the_folder_is_a_broken_sample(tree, name, has_root):
    source = with_image(tree, name, **({"root": tree} if has_root else {}))
    for action in (source.raw, source.probe, source.load):
        with pytest.raises(SampleError, match=REFUSED[name]) as raised:
            action(0)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["leaves/o.png", "leaves.png"])
def test_links_are_followed_but_not_out_of_a_root(tree, name):
    assert with_image(tree, name)[0]["png"].shape == (4, 3, 3)
    with pytest.raises(SampleError, match="leads out of the root"):
        with_image(tree, name, root=tree).raw(0)


def test_another_folder_of_media_is_named(tree):
    assert with_image(tree, "a.png", media=tree / "set" / "images")[0]["png"].shape == (4, 3, 3)
    whole = with_image(tree, str(tree / "c.png"), media=tree)
    assert whole[0]["png"].shape == (4, 3, 3)
    copy = open_source(with_image(tree, "a.png", media=tree / "set" / "images").spec(), tree)
    assert copy[0]["png"].shape == (4, 3, 3)
    source = with_image(tree, "a.png", root=tree, media="set/images")
    assert source[0]["png"].shape == (4, 3, 3)
    assert source.spec()["media"] == "set/images"


@pytest.mark.parametrize(
    ("media", "error"),
    [("../outside", ValueError), ("set/leaves", ValueError), ("gone", FileNotFoundError),
     ("/etc", ValueError), (3, ValueError), (["set"], ValueError)],
)  # fmt: skip
def test_a_folder_outside_of_the_root_is_refused(tree, media, error):
    write_lines(tree / "a.jsonl", [{"text": "a"}])
    spec = {"source": "jsonl", "pattern": ["a.jsonl"], "media": media}
    with pytest.raises(error):
        open_source(spec, tree)


def test_a_failing_disk_is_no_broken_image(tree, monkeypatch):
    source = with_image(tree, "b.png")
    with source._folders[0].open("b.png") as file:
        watched = type(file.raw)

    def fails(self, buffer):
        self.failed = OSError(5, "Input/output error")
        raise self.failed

    monkeypatch.setattr(watched, "readinto", fails)
    with pytest.raises(OSError, match="Input/output error"):
        source.probe(0)


@pytest.mark.parametrize("name", ["a.jsonl.index.npz", "."])
def test_only_what_is_json_is_opened(tree, name):
    with pytest.raises((ValueError, FileNotFoundError)):
        JsonlDataset(Path(name), root=tree)


def test_half_a_character_in_a_key_is_written_out(tmp_path):
    ids = ["a", "\ud800", "é", "b\udfff"]
    lines = [json.dumps({"id": each, "text": "hi"}) for each in ids]
    (tmp_path / "keys.jsonl").write_text("\n".join(lines))
    source = JsonlDataset(tmp_path / "keys.jsonl", key="id")
    keys = ["a", "\\ud800", "é", "b\\udfff"]
    assert [source.key(index) for index in range(len(ids))] == keys
    balance = counterpoise.Balance(budgets={"tokens": 9}, samples_per_step=2)
    balanced = {"balance": balance, "ranks": Ranks(virtual=1), "cost": {"tokens": [1] * len(ids)}}
    for more in ({"batch_size": 2}, balanced):
        loader = counterpoise.DataLoader(
            source, shuffle=True, on_error="skip", collate_fn=list, **more
        )
        assert sorted(sample["__key__"] for batch in loader for sample in batch) == sorted(keys)
