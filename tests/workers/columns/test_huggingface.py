"""Data sets of Hugging Face: folders, data sets in memory, views, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.workers import Probe, SampleError
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.sources.registry import open_source

pa = pytest.importorskip("pyarrow")
from tests.workers.columns.tables import END, save  # noqa: E402
from tests.workers.conftest import Picture  # noqa: E402

TEXTS = [f"text {n}" for n in range(12)]


@pytest.fixture
def folder(tmp_path: Path, picture: Picture) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": picture(seed=n)} for n in range(12)], kind)
    return save(tmp_path / "data", {"text": TEXTS, "image": images}, rows=3, files=2)


def texts(found: Any) -> list[str]:
    return [found.raw(index)["json"]["text"] for index in range(len(found))]


def test_a_folder_is_read_without_datasets(folder: Path, picture: Picture) -> None:
    found = cp.HFDataset(folder)
    assert texts(found) == TEXTS
    assert [found.key(k) for k in (0, 11)] == ["0", "11"]
    assert found.raw(7)["jpg"] == picture(seed=7)
    assert found.probe(7).cost["pixels"] == 48
    assert found[7]["jpg"].shape == (6, 8, 3)
    assert found.locate_file(7).endswith("data-00001-of-00002.arrow")


def test_rows_keep_their_names_in_views(folder: Path) -> None:
    found = cp.HFDataset(folder, rows=[9, 2, 2, 9, 2])
    assert texts(found) == [TEXTS[k] for k in (9, 2, 2, 9, 2)]
    assert [found.key(k) for k in range(5)] == ["9", "2", "2#2", "9#2", "2#3"]
    some: list[Any] = [[-1], [12], [0.5], [[1]], ["a"]]
    for odd in some:
        with pytest.raises(ValueError, match="rows"):
            cp.HFDataset(folder, rows=odd)
    with pytest.raises(ValueError, match="no samples in"):
        cp.HFDataset(folder, rows=[])


def test_costs_that_were_kept_hold_in_views(folder: Path, tmp_path: Path) -> None:
    given: Any = {"transform": cp.workers.VisionLanguage(tile_size=14), "cache": tmp_path / "cache"}
    whole = cp.HFDataset(folder, **given)
    probed = [whole.probe(index) for index in range(len(whole))]
    assert cp.HFDataset(folder, rows=[9, 2], **given).known(0) == probed[9]


@pytest.mark.parametrize("rows", [None, [3], list(range(2, 9)), [9, 2, 5]])
def test_descriptions_have_the_rows(rows: list[int] | None, folder: Path) -> None:
    found = cp.HFDataset(folder, rows=rows)
    spec = json.loads(json.dumps(found.spec()))
    assert len(str(spec.get("rows", ""))) < 12
    again = open_source(spec, folder.parent)
    assert texts(again) == texts(found) == texts(pickle.loads(pickle.dumps(found)))
    assert again.fingerprint() == found.fingerprint()


def test_views_differ_in_identity(folder: Path) -> None:
    views = [None, [3], [4], [4, 3], [3, 4]]
    assert len({cp.HFDataset(folder, rows=rows).data_digest() for rows in views}) == 5


def test_long_views_are_refused_for_workers_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.workers.columns.hf_folder.MOST_ROWS", 4)
    assert cp.HFDataset(folder, rows=range(1, 12)).spec()["rows"] == [1, -12]
    with pytest.raises(ValueError, match="save it with save_to_disk"):
        cp.HFDataset(folder, rows=[5, 4, 3, 2, 1]).spec()


def test_lengths_follow_the_view(tmp_path: Path) -> None:
    save(tmp_path, {"input_ids": [[1] * n for n in range(12)]})
    found = cp.HFDataset(tmp_path, rows=[9, 2, 9], lengths={"tokens": "input_ids"})
    assert [c.tolist() for c in found.known_costs(["tokens"]) or ()] == [[9, 2, 9]]
    assert found.probe(1).cost == {"tokens": 2}
    balance = cp.Balance(budgets={"tokens": 11}, samples_per_step=3, accumulate="auto")
    loader = cp.DataLoader(
        found, balance=balance, shuffle=True, collate_fn=list, ranks=cp.Ranks(virtual=1)
    )
    assert sorted(k for step in loader.steps() for i in step.infos for k in i.keys) == [
        "2",
        "9",
        "9#2",
    ]


# --- damage, change and refusals


def test_folders_that_are_none_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        cp.HFDataset(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"no state\.json"):
        cp.HFDataset(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has splits \(data\)"):
        cp.HFDataset(tmp_path)
    for odd in ([str(folder)] * 2, {"train": 1}, iter([])):
        with pytest.raises(ValueError, match=r"one folder|no datasets\.Dataset"):
            cp.HFDataset(odd)


@pytest.mark.parametrize("name", ["../a.arrow", "/etc/passwd", "..", "", 5, None])
def test_states_that_name_files_elsewhere_are_refused(name: Any, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(ValueError, match=r"state\.json is damaged"):
        cp.HFDataset(folder)


def test_links_out_of_the_root_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a").symlink_to(folder)
    for path in folder.iterdir():
        link = tmp_path / "root" / "b" / path.name
        link.write_bytes(path.read_bytes()) if path.suffix == ".json" else link.symlink_to(path)
    for name in ("a", "b", "../data", str(folder)):
        with pytest.raises(ValueError, match="leaves the root"):
            cp.HFDataset(name, root=tmp_path / "root")


def test_damaged_files_are_one_line(folder: Path) -> None:
    path = folder / "data-00000-of-00002.arrow"
    whole = path.read_bytes()
    for damaged in (b"", b"x" * 100, whole[:-1], whole[:200], whole[:200] + END, b"\0" * 50 + END):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"^{path}[^\n]*$"):
            cp.HFDataset(folder)


def test_offsets_that_lead_elsewhere_are_one_sample(tmp_path: Path) -> None:
    path = save(tmp_path, {"text": ["abcd", "efgh", "ijkl"]}, rows=3) / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    right = np.array([0, 4, 8, 12], np.int32).tobytes()
    assert whole.count(right) == 1
    path.write_bytes(whole.replace(right, np.array([0, 4, 1 << 30, 12], np.int32).tobytes()))
    found = cp.HFDataset(tmp_path)
    assert found.raw(0)["json"] == {"text": "abcd"}
    with pytest.raises(SampleError, match="'1' of"):
        found.raw(1)


def test_a_file_that_changes_is_an_error(folder: Path) -> None:
    found = cp.HFDataset(folder)
    found.raw(0)
    path = folder / "data-00000-of-00002.arrow"
    (folder / "new").write_bytes(path.read_bytes())
    (folder / "new").replace(path)
    with pytest.raises(DataChangedError):
        found.raw(0)
    assert found.reopen_if_changed()
    assert texts(found) == TEXTS


# --- datasets themselves


@pytest.fixture(scope="module")
def library() -> Any:
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


def test_views_of_datasets_are_rows_of_their_folder(library: Any, folder: Path) -> None:
    (folder / "dataset_info.json").write_text(
        json.dumps({"features": {"text": {"dtype": "string", "_type": "Value"},
                                 "image": {"_type": "Image"}}})
    )  # fmt: skip
    whole = library.load_from_disk(folder)
    on_disk = [
        whole,
        whole.shuffle(seed=1).select([5, 3, 5]),
        whole.select(range(2, 10)).select(range(3, 6)),
        whole.filter(lambda row: row["text"] > "text 4"),
        whole.train_test_split(0.25, seed=0)["test"],
        whole.shard(3, 1, contiguous=True),
        whole.sort("text", reverse=True),
        whole.remove_columns("image"),
        whole.cast_column("image", library.Image(decode=False)),
    ]
    for view in on_disk:
        found = cp.HFDataset(view)
        assert found.files
        assert texts(found) == view["text"][:]
        assert texts(open_source(found.spec(), folder)) == texts(found)
    assert [cp.HFDataset(on_disk[2]).key(k) for k in range(3)] == ["5", "6", "7"]
    in_memory = [
        whole.map(lambda row: {"text": row["text"].upper()}),
        whole.rename_column("text", "t").rename_column("t", "text"),
        library.concatenate_datasets([whole, whole.select([3, 1])]),
        library.interleave_datasets(
            [whole, whole.select([3, 1])], stopping_strategy="all_exhausted"
        ),
        library.Dataset.from_dict({"text": TEXTS}),
        whole.add_column("more", list(range(12))),
    ]
    for view in in_memory:
        found = cp.HFDataset(view)
        assert texts(found) == view["text"][:] == texts(pickle.loads(pickle.dumps(found)))
        assert len({found.key(k) for k in range(len(found))}) == len(view)
        with pytest.raises(ValueError, match=r"save_to_disk\(FOLDER\)"):
            found.spec()
    for odd in (whole.with_transform(lambda rows: rows), whole.to_iterable_dataset(),
                library.DatasetDict(train=whole)):  # fmt: skip
        with pytest.raises(ValueError, match=r"set_transform|no datasets\.Dataset"):
            cp.HFDataset(odd)


class Measured:
    """A transform that counts what it measures."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, raw: Any) -> Any:
        return raw

    def probe(self, raw: Any) -> Probe:
        self.asked.append(raw["json"]["text"])
        return Probe(raw["__key__"], {"tokens": len(raw["json"]["text"])})

    def fingerprint(self) -> str:
        return "measured"


def test_costs_of_rows_of_mapped_files_are_kept(library: Any, tmp_path: Path) -> None:
    def upper(row: Any) -> Any:
        return {"text": row["text"].upper()}

    def asked(data: Any) -> list[str]:
        """Return what a new process, so to speak, measures of a data set."""
        found = cp.HFDataset(data, measured := Measured(), cache=tmp_path / "cache")
        costs = [found.probe(index).cost for index in range(len(found))]
        assert costs == [{"tokens": len(text)} for text in data["text"][:]]
        return measured.asked

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    cached = {"cache_dir": str(tmp_path / "hub"), "split": "train"}
    whole = library.load_dataset("json", data_files=str(path), **cached)
    assert asked(whole) == TEXTS
    assert asked(whole) == []
    made = whole.map(upper)
    assert cp.HFDataset(made).files
    assert asked(made) == [text.upper() for text in TEXTS]
    for view in (made, made.select([7, 2]), made.select(range(3, 9)), made.shuffle(seed=3)):
        assert asked(view) == []
    # One file after the other, as load_dataset makes them of shards.
    more = made.map(lambda row: {"text": f"{row['text']} more"})
    assert asked(library.concatenate_datasets([made, more])) == more["text"][:]
    in_memory = library.Dataset.from_dict({"text": TEXTS})
    assert asked(in_memory) == asked(in_memory) == TEXTS
    # Another state of the file: its costs are measured again.
    (path,) = cp.HFDataset(made).files
    path.touch()
    assert len(asked(made)) == 12


def test_data_in_memory_have_the_same_identity_in_every_process(library: Any) -> None:
    made = [library.Dataset.from_dict({"text": TEXTS}) for _ in range(2)]
    one, two = (
        cp.HFDataset(each.map(lambda r: r, new_fingerprint=str(n))) for n, each in enumerate(made)
    )
    assert one.data_digest() == two.data_digest()
    other = library.Dataset.from_dict({"text": [*TEXTS[:-1], "other"]})
    assert cp.HFDataset(other).data_digest() != one.data_digest()


def test_forked_workers_load_what_this_process_does(folder: Path) -> None:
    found: Any = cp.HFDataset(folder, _text)
    assert found[0] == TEXTS[0]
    loader = torch.utils.data.DataLoader(found, batch_size=None, num_workers=2)
    assert list(loader) == TEXTS


def _text(raw: Any) -> str:
    return str(raw["json"]["text"])


@pytest.mark.parametrize("shape", [(2, 2), (None, 2), (1, 2, 2), (1, 1, 2, 2)])
def test_columns_of_arrays_are_lists(library: Any, tmp_path: Path, shape: Any) -> None:
    """Array2D and its like are extensions of Arrow's once datasets is imported."""
    kind = getattr(library, f"Array{len(shape)}D")(shape, "int32")
    value = np.arange(4, dtype=np.int32).reshape([size or 2 for size in shape]).tolist()
    features = library.Features({"x": kind, "n": library.Value("int32")})
    rows = library.Dataset.from_dict({"x": [value] * 3, "n": [1, 2, 3]}, features=features)
    rows.to_parquet(str(tmp_path / "a.parquet"))
    rows.save_to_disk(str(tmp_path / "a"))
    for kind, where in (
        (cp.HFDataset, rows),
        (cp.HFDataset, rows.select([2, 0])),
        (cp.HFDataset, str(tmp_path / "a")),
        (cp.ParquetDataset, tmp_path / "a.parquet"),
    ):
        data = kind(where, dict, lengths={"rows": "x"})
        assert data[1]["json"]["x"] == value
        assert data.probe(1).cost == {"rows": len(value)}


def test_a_view_of_no_rows_says_so(library: Any) -> None:
    rows = library.Dataset.from_dict({"id": ["a", "b"]})
    for view in (rows.select([]), library.Dataset.from_dict({"id": []})):
        with pytest.raises(ValueError, match=r"no (samples|rows)|has no"):
            cp.HFDataset(view, key="id")


def test_rows_that_are_repeated_have_no_key_of_their_own(library: Any) -> None:
    rows = library.Dataset.from_dict({"id": ["a", "b"]})
    for twice in (rows.repeat(2), library.concatenate_datasets([rows, rows])):
        with pytest.raises(ValueError, match="stands in two rows"):
            cp.HFDataset(twice, key="id")
    again = cp.HFDataset(rows.select([0, 1, 0]), dict, key="id")
    assert [again.key(index) for index in range(3)] == ["a", "b", "a#2"]
