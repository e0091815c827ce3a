"""The real shards in parquet and in Arrow give the samples of the tar, in the same order."""

import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset, random_split

import counterpoise as cp
from counterpoise.tools.analyze.scan.run import scan_all
from counterpoise.tools.analyze.scan.sources import ScanOptions, find_tasks
from counterpoise.tools.runners import in_this_process
from counterpoise.workers import SampleError
from counterpoise.workers.images.decode import is_image
from counterpoise.workers.sources.registry import open_data, open_source

pytest.importorskip("pyarrow")
from tests.loader import balanced_data
from tests.tars import write_tar
from tests.workers.columns.tables import save, table_of, write

TRANSFORM = cp.workers.VisionLanguage(tile_size=28, max_tiles=2, tokens_per_tile=4)
SHARE = 80
Forms = dict[str, Any]


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("columns")
    shard = data / "shards" / "mixed-00000.tar"
    with tarfile.open(shard) as whole:
        first = [each for each in whole.getmembers() if each.name < f"p{SHARE:06}"]
        write_tar(root / "a.tar", [(each.name, whole.extractfile(each).read()) for each in first])
    tar = cp.TarDataset(root / "a.tar", cache=root / "cache")
    table, texts = table_of(tar), table_of(tar, texts=True)
    write(root / "parquet" / "a.parquet", table[:40], 16)
    write(root / "parquet" / "b.parquet", table[40:], 7)
    write(root / "texts.parquet", texts, 50)
    save(root / "hf", table, 30, files=2)
    return root


@pytest.fixture(scope="module")
def tar(folder: Path) -> cp.TarDataset:
    return cp.TarDataset(folder / "a.tar", TRANSFORM, cache=folder / "cache")


@pytest.fixture(scope="module")
def forms(folder: Path) -> Forms:
    given: Any = {"transform": TRANSFORM, "key": "__key__", "cache": folder / "cache"}
    return {
        "parquet": cp.ParquetDataset(folder / "parquet", **given),
        "texts": cp.ParquetDataset(folder / "texts.parquet", **given),
        "hf": cp.HFDataset(folder / "hf", **given),
    }


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("form", ["parquet", "texts", "hf"])
def test_samples_keys_and_costs_are_the_tars(form: str, forms: Forms, tar: cp.TarDataset) -> None:
    found = forms[form]
    assert [found.key(k) for k in range(len(found))] == [tar.key(k) for k in range(len(tar))]
    assert [found.probe(k) for k in range(len(found))] == [tar.probe(k) for k in range(len(tar))]
    for index in range(0, len(tar), 5):
        assert same(found[index], tar[index])
        raw, expected = found.raw(index), tar.raw(index)
        assert raw.keys() == expected.keys()
        told = {name: expected["json"].get(name) for name in raw["json"]}
        assert raw == {**expected, "json": told}


def order(dataset: Any) -> list[Any]:
    balance = cp.Balance(
        budgets={"tiles": 16, "tokens": 6000}, samples_per_step=20, accumulate="auto", seed=5
    )
    loader = cp.DataLoader(
        dataset, balance=balance, shuffle=True, ranks=cp.Ranks(virtual=2), collate_fn=list
    )
    found = [
        (info.keys, balanced_data.digest(batch))
        for step in loader.steps()
        for batch, info in zip(step.microbatches, step.infos, strict=True)
    ]
    loader.close()
    return found


def test_a_seed_gives_the_tars_order(forms: Forms, tar: cp.TarDataset) -> None:
    assert order(forms["parquet"]) == order(forms["hf"]) == order(tar)


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_a_description_opens_the_same_below_a_root(form: str, forms: Forms, folder: Path) -> None:
    found = forms[form]
    again = open_source(found.spec(), folder, (), folder / "cache")
    copy = pickle.loads(pickle.dumps(found))
    for other in (again, copy):
        assert len(other) == len(found)
        assert other.fingerprint() == found.fingerprint()
        assert (other.key(71), other.probe(71)) == (found.key(71), found.probe(71))
        assert same(other.load(71, 0, 0), found[71])
    with pytest.raises(ValueError, match="leaves the root"):
        open_source(found.spec(), folder / "cache")


def test_a_path_alone_says_which_form_it_is(folder: Path) -> None:
    kinds = [type(open_data(folder / name)) for name in ("parquet", "texts.parquet", "hf")]
    assert kinds == [cp.ParquetDataset, cp.ParquetDataset, cp.HFDataset]


def test_views_and_mixtures_of_them(forms: Forms, tar: cp.TarDataset) -> None:
    sources: list[Any] = [tar, forms["parquet"], forms["hf"]]
    everything: Any = range(SHARE)
    chosen = random_split(everything, [50, SHARE - 50])[1].indices
    mixed = [cp.Mixture({"a": (Subset(d, chosen), 2), "b": (d, 1)}) for d in sources]
    joined: list[Any] = [ConcatDataset([Subset(d, range(9)), Subset(d, chosen)]) for d in sources]
    for same in (mixed, joined):
        expected, *found = map(order, same)
        assert found == [expected, expected]


def test_analyze_scans_what_it_scans_of_the_tar(folder: Path, tmp_path: Path) -> None:
    options = ScanOptions(f"{__name__}:TRANSFORM", cache=str(tmp_path))
    tables = []
    for name in ("a.tar", "parquet", "hf"):
        tasks = find_tasks([str(folder / name)])
        rows, _ = scan_all(tasks, options, tmp_path / name, in_this_process)
        tables.append((rows.resources, rows.costs.tolist(), rows.keys))
    assert tables[1:] == [tables[0], tables[0]]


def test_awkward_images_give_what_they_give_from_a_tar(data: Path, tmp_path: Path) -> None:
    paths = [p for p in sorted((data / "awkward").iterdir()) if is_image(p.suffix[1:])]
    text = "<image> what is this?"
    members = {f"{number:03}{path.suffix}": path.read_bytes() for number, path in enumerate(paths)}
    members |= {f"{number:03}.txt": text.encode() for number in range(len(paths))}
    write_tar(tmp_path / "a.tar", members)
    rows = {
        "text": [text] * len(paths),
        "name": [f"{number:03}" for number in range(len(paths))],
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
    }
    given: Any = {"transform": TRANSFORM, "key": "name", "cache": tmp_path}
    expected = outcomes(cp.TarDataset(tmp_path / "a.tar", TRANSFORM, cache=tmp_path))
    assert {type(each) for each in expected} == {str, dict}
    for found in (
        cp.ParquetDataset(write(tmp_path / "a.parquet", rows), **given),
        cp.HFDataset(save(tmp_path / "hf", rows), **given),
    ):
        assert all(map(alike, expected, outcomes(found)))


def outcomes(dataset: Any) -> list[Any]:
    """Return each sample, or the reason why there is none."""
    found = list[Any]()
    for index in range(len(dataset)):
        try:
            found.append(dataset[index])
        except SampleError as error:
            found.append(f"{error.key}: {error.reason}")
    return found


def alike(one: Any, other: Any) -> bool:
    return one == other if isinstance(one, str) else same(one, other)
