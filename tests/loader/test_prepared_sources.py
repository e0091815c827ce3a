"""The real shards as an Energon folder and as MDS: the samples, orders and figures of the tars."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

import counterpoise as cp
from counterpoise.loader import assembly
from counterpoise.tools.analyze.scan.run import scan_all
from counterpoise.tools.analyze.scan.sources import ScanOptions, find_tasks
from counterpoise.tools.runners import on_cores
from counterpoise.workers.sources.registry import open_source
from counterpoise.workers.vision_language.transform import image_members
from tests.loader import balanced_data
from tests.loader.local.both_ways import by_balancer
from tests.workers.prepared import image_list, prepare, write_mds

SMALL: dict[str, Any] = {"tile_size": 32, "max_tiles": 4, "tokens_per_tile": 2}
small = cp.workers.VisionLanguage(**SMALL)
SHARDS = 2
COLUMNS = {"json": "json", "images": "list[jpeg]"}


@pytest.fixture(scope="module")
def root(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the shards as tars, `tars`, prepared, `energon`, and written as MDS, `mds`."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("tars", "energon"):
        (folder / name).mkdir()
        for shard in sorted((data / "shards").glob("*.tar"))[:SHARDS]:
            shutil.copyfile(shard, folder / name / shard.name)
    counts = {path.name: len(cp.TarDataset(path)) for path in sorted((folder / "tars").iterdir())}
    prepare(folder / "energon", counts, {"train": list(counts), "val": []})
    tars = cp.TarDataset(folder / "tars")
    samples = []
    for index in range(len(tars)):
        raw = tars.raw(index)
        images = image_list([raw[name] for name in image_members(raw)])
        samples.append({"json": json.dumps(raw["json"]).encode(), "images": images})
    write_mds(folder / "mds", COLUMNS, samples, per_shard=100)
    return folder


def tars(root: Path) -> cp.TarDataset:
    return cp.TarDataset("tars/*.tar", cp.workers.VisionLanguage(**SMALL), root, root / "cache")


def energon(root: Path) -> Any:
    transform = cp.workers.VisionLanguage(**SMALL)
    return cp.EnergonDataset("energon", "train", transform, root, root / "cache")


def mds(root: Path) -> Any:
    return cp.MDSDataset("mds", cp.workers.VisionLanguage(**SMALL), root, root / "cache")


FORMATS = pytest.mark.parametrize("other", [energon, mds])
Open = Callable[[Path], Any]


@FORMATS
def test_samples_and_costs_are_those_of_the_tars(root: Path, other: Open) -> None:
    data, same = tars(root), other(root)
    assert len(data) == len(same) == 462
    for index in range(len(data)):
        assert same.probe(index).cost == data.probe(index).cost
    for index in range(0, len(data), 17):
        wanted, found = data.load(index), same.load(index)
        assert list(found) == list(wanted)
        for name in wanted:
            assert found[name].tobytes() == wanted[name].tobytes()
    if other is energon:
        assert [same.key(n) for n in range(462)] == [data.key(n) for n in range(462)]
        assert same.data_digest() == data.data_digest()


def steps(data: Any, **others: Any) -> list[Any]:
    """Return of each microbatch its step, rank, places in a view, and what is in its batch."""
    view = range(0, len(data), 8)
    made = cp.DataLoader(
        Subset(data, view),
        balance=cp.Balance(
            budgets={"tiles": 40, "tokens": 6000}, samples_per_step=16, accumulate="auto", seed=5
        ),
        shuffle=True, ranks=cp.Ranks(virtual=2), collate_fn=list, **others,
    )  # fmt: skip
    return [
        (step.number, info.rank, info.keys, balanced_data.digest(batch))
        for step in made.steps()
        for batch, info in zip(step.microbatches, step.infos, strict=True)
    ]


@pytest.fixture(scope="module")
def wanted(root: Path) -> list[Any]:
    return steps(tars(root))


@FORMATS
def test_a_seed_gives_the_order_and_batches_of_the_tars(
    root: Path, wanted: list[Any], other: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps(other(root), num_workers=2) == wanted
    monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    assert steps(other(root)) == wanted


@FORMATS
def test_workers_elsewhere_open_what_is_described(root: Path, other: Open) -> None:
    spec = json.loads(json.dumps(other(root).spec()))
    assert open_source(spec, root).fingerprint() == other(root).fingerprint()
    assert "/" not in json.dumps(spec["pattern"])


@FORMATS
def test_a_mixture_takes_them(root: Path, other: Open) -> None:
    data = cp.Mixture({"a": (other(root), 3), "b": (tars(root), 1)}, epoch=40)
    names = [data.find_source(data.key(n)) for n in range(40)]
    assert names.count("a") == 30


@pytest.mark.parametrize("name", ["energon", "mds"])
def test_analyze_scans_what_it_scans_in_the_tars(root: Path, name: str, tmp_path: Path) -> None:
    def scanned(folder: Path) -> Any:
        tasks = find_tasks([str(folder)])
        options = ScanOptions(f"{__name__}:small", cache=str(root / "cache"))
        return scan_all(tasks, options, tmp_path / folder.name, on_cores(1))[0]

    wanted, found = scanned(root / "tars"), scanned(root / name)
    assert found.resources == wanted.resources
    assert found.costs.tolist() == wanted.costs.tolist()
    assert not found.failures
