"""Energon's prepared folders: their splits are parts of the tars, their fields are named."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import counterpoise as cp
from counterpoise.workers import SampleError
from counterpoise.workers.energon.folder import Subset
from counterpoise.workers.sources.interface import Probe
from counterpoise.workers.sources.registry import open_source
from tests.workers.prepared import prepare

COUNTS = {"a-0.tar": 3, "a-1.tar": 4, "sub/b.tar": 2}
PARTS = {"train": ["a-{1..0}.tar"], "val": ["sub/b.tar"]}
QUESTION = {"image": "jpg,png", "context": "json[turns][0]", "answers": "txt"}
VQA = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "VQASample"},
    "field_map": QUESTION,
}


@pytest.fixture
def folder(shard: Any, picture: Any, tmp_path: Path) -> Path:
    for name, count in COUNTS.items():
        members = dict[str, Any]()
        for row in range(count):
            key = f"{Path(name).stem}.{row}".replace(".", "_")
            image = picture(5 + row, 4, "JPEG" if row % 2 else "PNG", seed=row)
            members[f"{key}.{'jpg' if row % 2 else 'png'}"] = image
            members[f"{key}.json"] = {"turns": [f"what is {key}?"]}
            members[f"{key}.txt"] = f"it is {key}".encode()
        shard(name, members)
    return prepare(tmp_path, COUNTS, PARTS)


def keys(data: Any) -> list[str]:
    return [data.key(n) for n in range(len(data))]


def given(raw: Any) -> Any:
    return raw


def widths(raw: Any) -> Any:
    return raw["image"]


def _probe(raw: Any) -> Probe:
    size = len(raw["image"].read())
    return Probe(raw["__key__"], {"bytes": size, "letters": len(raw["context"])})


widths.probe = _probe  # type: ignore[attr-defined]


def test_a_split_has_its_shards_in_its_order(folder: Path) -> None:
    assert keys(cp.EnergonDataset(folder)) == [*(f"a-1_{n}" for n in range(4)), "a-0_0", "a-0_1",
                                               "a-0_2"]  # fmt: skip
    assert keys(cp.EnergonDataset(str(folder), "val")) == ["b_0", "b_1"]
    with pytest.raises(ValueError, match="no split 'test', splits are: train, val"):
        cp.EnergonDataset(folder, "test")


def test_samples_are_those_of_the_tars(folder: Path) -> None:
    data, tars = cp.EnergonDataset(folder, "val"), cp.TarDataset(folder / "sub")
    for index in range(2):
        assert data.raw(index) == tars.raw(index)
        assert data.probe(index) == tars.probe(index)
        assert (data[index]["png" if index == 0 else "jpg"] ==
                tars[index]["png" if index == 0 else "jpg"]).all()  # fmt: skip
    assert data.locate_file(1) == str(folder / "sub/b.tar")
    assert data.data_digest() == tars.data_digest()


def test_shards_and_samples_that_are_excluded_are_left_out(folder: Path) -> None:
    whole = cp.EnergonDataset(folder).data_digest()
    prepare(folder, COUNTS, PARTS, exclude=["a-0.tar", "a-1.tar/a-1_{1,3}"])
    data = cp.EnergonDataset(folder)
    assert keys(data) == ["a-1_0", "a-1_2"]
    assert data.raw(1)["txt"] == "it is a-1_2"
    assert data.data_digest() != whole


def test_fields_of_the_map_are_beside_the_members(folder: Path) -> None:
    prepare(folder, COUNTS, PARTS, VQA)
    data = cp.EnergonDataset(folder, "val", given)
    for index, image in enumerate(("png", "jpg")):
        raw = data[index]
        assert raw["image"] is raw[image]
        assert raw["context"] == f"what is b_{index}?"
        assert raw["answers"] == f"it is b_{index}" == raw["txt"]
    plain = cp.EnergonDataset(folder, "val")
    assert plain[1]["image"] is plain[1]["jpg"] or plain[1]["image"].shape == (4, 6, 3)
    assert plain.probe(1) == cp.TarDataset(folder / "sub").probe(1)
    measured = cp.EnergonDataset(folder, "val", widths)
    assert measured.probe(0).cost == {"bytes": len(measured[0]), "letters": 12}
    assert pickle.loads(pickle.dumps(measured))[0] == measured[0]


def test_a_sample_without_a_field_is_named(folder: Path) -> None:
    prepare(folder, COUNTS, PARTS, {**VQA, "field_map": {"image": "jpg,json[x][9]"}})
    with pytest.raises(SampleError, match=r"'b_0' of .*b\.tar.*'image' is in none of jpg, json/x"):
        cp.EnergonDataset(folder, "val", given)[0]


def test_code_in_the_folder_is_never_run(folder: Path) -> None:
    code = {"sample_type": VQA["sample_type"], "sample_loader": "sample_loader.py:sample_loader",
            "part_filter": "sample_loader.py:part_filter"}  # fmt: skip
    prepare(folder, COUNTS, PARTS, code)
    (folder / ".nv-meta/sample_loader.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ValueError, match=r"sample_loader\.py:sample_loader, code.*give transform="):
        cp.EnergonDataset(folder)
    assert sorted(cp.EnergonDataset(folder, "val", given)[0]) == ["__key__", "json", "png", "txt"]


def test_older_and_other_files_of_the_folder_are_read(folder: Path) -> None:
    meta = folder / ".nv-meta"
    info = json.loads((meta / ".info.json").read_text())
    (meta / ".info.yaml").write_text(yaml.dump(info))
    (meta / ".info.json").unlink()
    (meta / "split.json").write_text(json.dumps({"split_parts": {"train": ["a-0.tar"]}}))
    (meta / "split.yaml").rename(meta / "mine.yaml")
    (meta / "dataset.yaml").rename(meta / "vqa.yaml")
    assert len(cp.EnergonDataset(folder)) == 3
    other = cp.EnergonDataset(folder, "val", dataset_config="vqa.yaml", split_config="mine.yaml")
    assert len(other) == 2
    with pytest.raises(FileNotFoundError, match="dataset_config"):
        cp.EnergonDataset(folder, dataset_config="none.yaml")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([], (0, 7)), ([2, 5], (2, 5)), ([2, "end"], (2, 7)), (["0%", "50%"], (0, 3)),
        (["50%", "100%"], (3, 7)), ([7, "end"], (7, 7)),
    ],
)  # fmt: skip
def test_a_subset_is_a_range_of_the_split(folder: Path, given: Any, found: Any) -> None:
    every = keys(cp.EnergonDataset(folder))
    if found[0] == found[1]:
        with pytest.raises(ValueError, match="have no samples"):
            cp.EnergonDataset(folder, subset=given)
        return
    data = cp.EnergonDataset(folder, subset=given)
    assert keys(data) == every[slice(*found)]
    assert [data.raw(n)["__key__"] for n in range(len(data))] == keys(data)


@pytest.mark.parametrize(
    "given",
    [
        [1], ["a%", "9%"], ["50%", "20%"], [-1, 4], [2, 1], [0, 99], [0.5, 1], "ab", [0, "9%"],
        [0, None, 0.0, 2.0], [0, None, float("nan"), 1.0], [[], {}],
    ],
)  # fmt: skip
def test_what_is_no_subset_is_refused(folder: Path, given: Any) -> None:
    with pytest.raises(ValueError, match=r"(a|the) subset is"):
        cp.EnergonDataset(folder, subset=given)


def test_shares_of_subsets_multiply_and_only_a_folder_has_a_range() -> None:
    half, rest = Subset.parse(["0%", "50%"]), Subset.parse([40, "end"])
    assert rest.within(half).within(half).bounds(200) == (40, 80)
    with pytest.raises(ValueError, match="only of a folder"):
        half.within(rest)


def test_workers_elsewhere_open_the_same_below_their_root(folder: Path) -> None:
    prepare(folder, COUNTS, PARTS, VQA)
    root = folder.parent
    data = cp.EnergonDataset(folder.name, "train", given, root, subset=[1, 6], subflavors={"a": 1})
    spec = json.loads(json.dumps(data.spec()))
    other = open_source(spec, root, (f"{__name__}:given",))
    assert keys(other) == keys(data)
    assert other.fingerprint() == data.fingerprint()
    assert other.load(2, 0, 0) == data[2]
    assert other.load(2, 0, 0)["__subflavors__"] == {"a": 1}
    for wrong, why in (
        ({"pattern": ["../" + root.name + "x"]}, "leaves the root"),
        ({"pattern": [folder.name, "b"]}, "one prepared folder"),
        ({"split": 5}, "split is 5"),
        ({"subflavors": [1]}, r"subflavors \[1\]"),
        ({"subset": {"a": 1}}, "(a|the) subset is"),
        ({"split_config": "../../x.yaml"}, "leaves the folder"),
        ({"dataset_config": 5}, "needed is a text"),
        ({"code": "x"}, "not described by code"),
    ):
        with pytest.raises(ValueError, match=why):
            open_source({**spec, **wrong}, root, (f"{__name__}:given",))


def test_links_lead_nowhere_out_of_the_root(folder: Path, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    for name in (".nv-meta/split.yaml", ".nv-meta/.info.json", ".nv-meta/dataset.yaml", "a-0.tar"):
        target = outside / Path(name).name
        (folder / name).rename(target)
        (folder / name).symlink_to(target)
        with pytest.raises(ValueError, match="leaves the root"):
            cp.EnergonDataset(".", root=folder)
        (folder / name).unlink()
        target.rename(folder / name)
    assert len(cp.EnergonDataset(".", root=folder)) == 7


def broken(folder: Path, name: str, text: str) -> None:
    (folder / ".nv-meta" / name).write_text(text)


BOMB = "a: &a [x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (".info.json", '{"shard_counts": ', "cannot be read"),
        (".info.json", "[" * 100_000, "cannot be read"),
        (".info.json", "[]", "no mapping"),
        (".info.json", "{}", "no shard_counts.*energon prepare"),
        (".info.json", '{"shard_counts": {"a-0.tar": 3}}', "'a-1.tar' is not in .info.json"),
        (".info.json", json.dumps({"shard_counts": {**COUNTS, "a-1.tar": 5}}), "has 4 samples.*5"),
        ("split.yaml", "split_parts: [", "cannot be read"),
        ("split.yaml", "split_parts: {train: a-0.tar}", "needed is a list of texts"),
        ("split.yaml", "split_parts: {train: [1, 2]}", "needed is a list of texts"),
        ("split.yaml", "split_parts: {train: []}", "has no shards"),
        ("split.yaml", "split_parts: {train: ['../x.tar']}", "leaves the folder"),
        ("split.yaml", "split_parts: {train: ['/etc/passwd']}", "leaves the folder"),
        ("split.yaml", "split_parts: {train: ['s3://b/x.tar']}", "no local path"),
        ("split.yaml", "split_parts: {train: ['{0..99999999}.tar']}", "stands for over"),
        ("split.yaml", "split_parts: {train: ['" + "{" * 40 + "a" + "}" * 40 + "']}", "braces"),
        ("split.yaml", "split_parts: {train: ['{a.tar']}", "split.yaml: train: .*Unbalanced"),
        ("split.yaml", BOMB, "is an alias"),
        ("split.yaml", "a: &a {b: 1}\nc: {<<: *a}", "is an alias"),
        ("split.yaml", "a: " + "[" * 5000, "depth"),
        ("split.yaml", "a: '" + "x" * 5000 + "'", "text of over"),
        ("dataset.yaml", "!!python/object/apply:os.system ['touch ran']", "cannot be read.*python"),
        ("dataset.yaml", "field_map: [a]", "field_map is"),
        ("dataset.yaml", "field_map: {image: 'jpg]['}", "write jpg, or jpg,png"),
        ("dataset.yaml", "5: 6", "no mapping"),
    ],
)
def test_damaged_and_hostile_files_are_told_in_a_line(
    folder: Path, name: str, text: str, why: str
) -> None:
    broken(folder, name, text)
    with pytest.raises(ValueError, match=why) as told:
        cp.EnergonDataset(folder)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600
    assert not Path("ran").exists()


def test_missing_and_cut_shards_are_told(folder: Path) -> None:
    whole = (folder / "a-0.tar").read_bytes()
    (folder / "a-0.tar").write_bytes(whole[:8800])
    with pytest.raises(ValueError, match=r"a-0\.tar is truncated"):
        cp.EnergonDataset(folder)
    (folder / "a-0.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file: .*a-0\.tar \(from .*split\.yaml"):
        cp.EnergonDataset(folder)
    with pytest.raises(FileNotFoundError, match="run `energon prepare` there, or read tars"):
        cp.EnergonDataset(folder / "sub")
    with pytest.raises(ValueError, match=r"cp\.workers\.open_metadataset"):
        cp.EnergonDataset(folder / ".nv-meta/split.yaml")


@pytest.mark.parametrize("name", [".info.json", "dataset.yaml", "a-0.tar"])
def test_a_file_that_is_a_link_to_nowhere_is_named(folder: Path, name: str) -> None:
    """An older .info.yaml, or no fields at all, would be taken in silence."""
    (folder / ".nv-meta" / ".info.yaml").write_bytes(
        (folder / ".nv-meta" / ".info.json").read_bytes()
    )
    path = folder / name if name.endswith(".tar") else folder / ".nv-meta" / name
    path.unlink(missing_ok=True)
    path.symlink_to(folder / "gone")
    with pytest.raises(FileNotFoundError, match=name):
        cp.EnergonDataset(folder)


def test_shards_that_were_made_anew_are_read_with_what_is_said_of_them_now(
    folder: Path, shard: Any
) -> None:
    data = cp.EnergonDataset(folder, "val")
    shard("sub/b.tar", {f"c{n}.txt": b"new" for n in range(5)})
    prepare(folder, {**COUNTS, "sub/b.tar": 5}, PARTS)
    assert data.reopen_if_changed()
    assert keys(data) == [f"c{n}" for n in range(5)]


def test_an_index_of_some_rows_is_as_if_there_were_no_others(folder: Path) -> None:
    whole = cp.TarDataset(folder / "a-1.tar")._indexes[0]
    some = whole.select(np.array([3, 1]))
    assert [some.name(n) for n in range(2)] == ["a-1_3", "a-1_1"]
    assert [some.sample(n) for n in range(2)] == [whole.sample(3), whole.sample(1)]
    assert len(whole.select(np.array([], np.int64))) == 0


def test_costs_that_were_kept_are_of_the_same_fields(folder: Path) -> None:
    class Measure:
        def __call__(self, raw: Any) -> Any:
            return raw["words"]

        def probe(self, raw: Any) -> Probe:
            return Probe(raw["__key__"], {"words": len(raw["words"])})

        def fingerprint(self) -> str:
            return "measure"

    for text, words in (("txt", "it is b_0"), ("json[turns][0]", "what is b_0?")):
        prepare(folder, COUNTS, PARTS, {"field_map": {"words": text}})
        for _ in range(2):
            data = cp.EnergonDataset(folder, "val", Measure())
            assert data.probe(0).cost == {"words": len(words)}
        assert data.known(0) == data.probe(0)
