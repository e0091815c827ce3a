"""`counterpoise prepare --index-only` keeps indexes and costs of data as they are."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.workers import JsonlDataset, TarDataset
from tests.tools.prepare.data_sets import Counting

HERE = "tests.tools.prepare.data_sets"
BALANCE = cp.Balance(budgets={"tiles": 12, "tokens": 4096}, samples_per_step=16, accumulate="auto")


def probes_of_an_epoch(folder: Path, **more: Any) -> int:
    """Return how often a balanced loop asks the transform what a sample costs."""
    source = TarDataset(folder, Counting(), **more)
    Counting.probed = 0
    loader = cp.DataLoader(source, balance=BALANCE, shuffle=True, collate_fn=list)
    delivered = sum(info.samples for step in loader.steps() for info in step.infos)
    assert delivered > len(source) - 16
    return Counting.probed


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """Return a folder with a real shard and one that is prepared, and nothing kept."""
    found = tmp_path / "shards"
    found.mkdir()
    shutil.copy(data / "shards" / "mixed-00000.tar", found)
    return found


def test_the_first_epoch_probes_nothing(prepare: Any, folder: Path) -> None:
    samples = len(TarDataset(folder))
    assert probes_of_an_epoch(folder, cache=folder.parent / "other") == samples
    report = prepare(folder, "--index-only", "--transform", f"{HERE}:Counting")
    assert (report["costs_kept"], report["without_cost"]) == (samples, 0)
    assert probes_of_an_epoch(folder) == 0
    Counting.probed = 0
    assert (
        prepare(folder, "--index-only", "--transform", f"{HERE}:Counting")["costs_kept"] == samples
    )
    assert Counting.probed == 0


def test_costs_go_to_the_cache_that_is_named(prepare: Any, folder: Path, tmp_path: Path) -> None:
    before = sorted(folder.iterdir())
    words = ("--transform", f"{HERE}:Counting", "--cache", tmp_path / "cache")
    prepare(folder, "--index-only", *words)
    assert sorted(folder.iterdir()) == before
    assert probes_of_an_epoch(folder, cache=tmp_path / "cache") == 0


def test_written_shards_have_costs(prepare: Any, folder: Path, tmp_path: Path) -> None:
    words = ("--out", tmp_path / "out", "--shard-size", 1, "--transform", f"{HERE}:Counting")
    report = prepare(folder, *words)
    assert report["costs_kept"] == report["samples"]
    assert probes_of_an_epoch(tmp_path / "out") == 0


def test_records_keep_costs_too(prepare: Any, data: Path, tmp_path: Path) -> None:
    source = TarDataset(data / "shards" / "mixed-00000.tar")
    texts = [source.raw(index) for index in range(len(source))]
    lines = [json.dumps({"id": raw["__key__"], **raw["json"]}) for raw in texts if len(raw) == 2]
    assert len(lines) > 9
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(lines))
    for probed in (len(lines), 0):
        Counting.probed = 0
        report = prepare(path, "--index-only", "--transform", f"{HERE}:Counting")
        assert (report["costs_kept"], Counting.probed) == (len(lines), probed)
    records = JsonlDataset(path, Counting())
    assert all(records.known(index) is not None for index in range(len(records)))


def test_what_cannot_be_kept_is_said(fails: Any, folder: Path, tmp_path: Path) -> None:
    said = fails(folder, "--index-only", "--transform", f"{HERE}:silent")
    assert said.startswith(f"{HERE}:silent has no probe and no fingerprint: probe(raw) says")
    (tmp_path / "file").write_text("")
    words = ("--index-only", "--transform", f"{HERE}:Counting")
    assert "give a folder with --cache" in fails(folder, *words, "--cache", tmp_path / "file" / "x")
    assert "no costs are kept of tables and of data sets" in fails(f"{HERE}:Many", *words)


def test_samples_without_a_cost_are_named(
    prepare: Any, fails: Any, shard: Any, tmp_path: Path
) -> None:
    broken = {f"{n}.json": {"conversations": "none"} for n in range(3)}
    good = {f"good{n}.txt": b"a text" for n in range(3)}
    path = shard("shards/a.tar", broken | good)
    shard("shards/b.tar", {"c.txt": b"a text"}).write_bytes(path.read_bytes()[:700])
    words = (path.parent, "--index-only", "--transform", f"{HERE}:Counting", "--dead-letter")
    said = fails(*words, tmp_path / "letters")
    assert "have no cost; the first is 0 of" in said
    report = prepare(*words, tmp_path / "letters", "--on-error", "skip")
    assert report["without_cost"] == 4
    assert len((tmp_path / "letters").read_text().splitlines()) == 4
