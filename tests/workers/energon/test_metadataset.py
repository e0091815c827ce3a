"""Metadatasets: the shares, ranges and splits that Energon itself makes of them.

What is expected of SHARES was read off megatron-energon 7.4.1 (`load_dataset(path).get_datasets`)
over folders with the same numbers of samples.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import counterpoise as cp
from counterpoise.workers.energon.metadataset import open_metadataset
from tests.workers.prepared import prepare

COUNTS = {"en": {"train": 64, "val": 30, "test": 39}, "more": {"train": 10, "val": 5, "test": 2}}


@pytest.fixture
def place(shard: Any, tmp_path: Path) -> Path:
    """Two prepared folders, `en` and `more`."""
    for folder, parts in COUNTS.items():
        for part, count in parts.items():
            texts = {f"{folder}-{part}-{n}.txt": f"{n}".encode() for n in range(count)}
            shard(f"{folder}/{part}.tar", texts)
        counts = {f"{part}.tar": count for part, count in parts.items()}
        prepare(tmp_path / folder, counts, {part: [f"{part}.tar"] for part in parts})
    return tmp_path


def write(path: Path, splits: str | dict[str, Any], kind: str = "MetadatasetV2") -> Path:
    """Write a metadataset of splits, which are YAML."""
    path.parent.mkdir(exist_ok=True)
    about = {"__module__": "megatron.energon", "__class__": kind}
    splits = yaml.safe_load(splits) if isinstance(splits, str) else splits
    path.write_text(yaml.dump({**about, "splits": splits}, sort_keys=False))
    return path


def opened(path: Path, split: str = "train", **others: Any) -> list[tuple[Any, ...]]:
    """Return of each source its name, first key, number of samples, share and subflavors."""
    data = open_metadataset(path, split, **others)
    whole = sum(data.rows.recipe.schedule[0][1])
    return [
        (name, part.key(0), len(part), round(float(weight / whole), 5), part.subflavors)
        for name, part, weight in zip(
            data.names, data.rows.sources, data.rows.recipe.schedule[0][1], strict=True
        )
    ]


INNER = """
train:
  subset: {range: [0%, 50%]}
  blend:
    - {path: en, weight: 1, subset: {range: [10, end]}, subflavors: {a: inner, b: 1}}
    - {path: ./en, split_part: val, weight: 3}
val: {path: en}
"""
OUTER = """
train:
  blend:
    - {path: ../in.yaml, weight: 2, subset: {range: [50%, 100%]}, subflavors: {a: outer}}
    - {path: ../en, split_part: test, weight: 6}
val: {path: ../in.yaml}
"""


@pytest.fixture
def nested(place: Path) -> Path:
    write(place / "in.yaml", INNER)
    return write(place / "metas/out.yaml", OUTER)


def test_shares_subsets_and_subflavors_are_energons(nested: Path) -> None:
    assert opened(nested) == [
        ("en", "en-train-23", 14, 0.0625, {"a": "outer", "b": 1}),
        ("en-val", "en-val-7", 8, 0.1875, {"a": "outer"}),
        ("en-test", "en-test-0", 39, 0.75, {}),
    ]


def test_the_older_form_is_read_too(nested: Path) -> None:
    old = "{path: ../en, split_part: val, weight: 1, subflavor: old}"
    splits = f"train: {{datasets: [{{path: out.yaml, weight: 1}}, {old}]}}"
    path = write(nested.parent / "v1.yaml", splits, "Metadataset")
    assert [(name, share) for name, _, _, share, _ in opened(path)] == [
        ("en", 0.03125), ("en-val", 0.09375), ("en-test", 0.375), ("en-val-2", 0.5),
    ]  # fmt: skip
    assert opened(path)[3][-1] == {"__subflavor__": "old"}


def test_one_folder_is_its_data_set(nested: Path) -> None:
    data = open_metadataset(nested, "val")
    assert isinstance(data, cp.EnergonDataset)
    assert (len(data), data.key(0)) == (30, "en-val-0")


def test_a_mixture_has_the_shares_at_every_prefix(nested: Path) -> None:
    data = cp.workers.open_metadataset(nested, epoch=160)
    assert isinstance(data, cp.Mixture)
    had = Counter(data.find_source(data.key(n)) for n in range(160))
    assert had == {"en": 10, "en-val": 30, "en-test": 120}


def test_an_epoch_of_repetitions_has_each_sample_as_often(place: Path) -> None:
    seven = "{path: more, repetitions: 2, subset: {range: [0, 7]}}"
    splits = f"train: {{blend_epochized: [{{path: en, repetitions: 0.5}}, {seven}]}}"
    path = write(place / "ep.yaml", splits)
    data = open_metadataset(path)
    assert len(data) == 32 + 14
    for epoch in range(2):
        data.set_epoch(epoch)
        had = Counter(data[n]["__key__"] for n in range(len(data)))
        assert sorted(had.values()) == [1] * 32 + [2] * 7
        assert {key for key, times in had.items() if times == 2} == {
            f"more-train-{n}" for n in range(7)
        }


def test_other_splits_are_concatenated_unless_it_is_said(place: Path) -> None:
    blend = "{blend: [{path: en, weight: 3}, {path: more}]}"
    path = write(place / "mix.yaml", f"{{train: {blend}, val: {blend}}}")
    data = open_metadataset(path, "val")
    assert [sample["__key__"] for sample in data] == [
        *(f"en-val-{n}" for n in range(30)), *(f"more-val-{n}" for n in range(5)),
    ]  # fmt: skip
    assert isinstance(open_metadataset(path, "val", concatenated=False), cp.Mixture)
    assert len(open_metadataset(path, concatenated=True)) == 74


def test_workers_elsewhere_read_what_it_leads_to(nested: Path) -> None:
    import json

    from counterpoise.workers.sources.registry import open_source

    root = nested.parent.parent
    rows = open_metadataset("metas/out.yaml", root=root).rows
    other: Any = open_source(json.loads(json.dumps(rows.spec())), root)
    assert [other.key(n) for n in range(len(other))] == [rows.key(n) for n in range(len(rows))]
    assert other.fingerprint() == rows.fingerprint()


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"join": [{"path": "en"}], "joiner": "x"}, "join cannot be expressed: samples joined"),
        ({"blend": [{"join": {}, "joiner": 1}]}, "join cannot be expressed"),
        ({"path": "en", "aux": {"x": "more"}}, "aux cannot be expressed: auxiliary data"),
        ({"path": "en", "shuffle_over_epochs_multiplier": -1}, "with replacement"),
        ({"path": "en", "subflavors": {"a": {"__module__": "os", "__function__": "getcwd"}}},
         "subflavors have code"),
        ({"path": "en", "colour": 1}, "'colour' is not known here"),
        ({"path": "en", "subset": {"range": [1, 2, 3]}}, "subset is"),
        ({"path": "en", "subset": 5}, "subset is"),
        ({"path": "s3://bucket/en"}, "no local path"),
        ({"path": 5}, "a path is 5"),
        ({"path": "data.jsonl"}, "cp.JsonlDataset"),
        ({"blend": []}, "no list of folders"),
        ({"blend": ["en"]}, "a reference is 'en'"),
        ({"blend": [{"path": "en", "weight": -1}]}, "weight is -1"),
        ({"blend": [{"path": "en", "weight": "2"}]}, "weight is '2'"),
        ({"blend": [{"path": "en", "weight": 0}]}, "weights"),
        ({"blend": [{"path": "ep.yaml"}]}, "mixes blend with blend_epochized"),
        ({"blend": [{"path": "ep.yaml", "subset": {"range": [0, 5]}}]}, "give shares"),
        ({"subset": {"range": [0, 5]}, "blend": [{"path": "en"}]}, "only of a folder"),
        ({"path": "loop.yaml"}, "leads back to itself"),
        ({"path": "ep.yaml", "split_part": "val"}, "no split 'val', splits are: train"),
        ({"path": "en", "split_part": "dev"}, "no split 'dev'"),
        ({"path": "en/.nv-meta/dataset.yaml"}, "is a CrudeWebdataset"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_by_its_name(
    place: Path, about: dict[str, Any], why: str
) -> None:
    write(place / "ep.yaml", {"train": {"blend_epochized": [{"path": "en"}]}})
    write(place / "loop.yaml", {"train": {"blend": [{"path": "en"}, {"path": "made.yaml"}]}})
    path = write(place / "made.yaml", {"train": about})
    with pytest.raises(ValueError, match=why) as told:
        open_metadataset(path)
    assert "\n" not in str(told.value)


def test_paths_lead_nowhere_out_of_a_root(place: Path) -> None:
    path = write(place / "more/mix.yaml", {"train": {"blend": [{"path": "../en"}]}})
    assert len(open_metadataset(path)) == 64
    with pytest.raises(ValueError, match="leaves the root"):
        open_metadataset("mix.yaml", root=place / "more")
    (place / "more/link.yaml").symlink_to(place / "en/.nv-meta/split.yaml")
    with pytest.raises(ValueError, match="leaves the root"):
        open_metadataset("link.yaml", root=place / "more")
    with pytest.raises(FileNotFoundError, match="no prepared folder"):
        open_metadataset(write(place / "gone.yaml", {"train": {"path": "gone"}}))


def test_doubling_files_are_refused_before_they_are_all_followed(place: Path) -> None:
    for n in range(30):
        following = f"{n + 1}.yaml" if n < 29 else "en"
        write(place / f"{n}.yaml", {"train": {"blend": [{"path": following} for _ in range(3)]}})
    with pytest.raises(ValueError, match="leads to over"):
        open_metadataset(place / "0.yaml")
