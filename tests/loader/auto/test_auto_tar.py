# ruff: noqa: ARG005 (all parts are made of two data sets, of which many need one)
"""Tar shards whose transform says no costs: balanced by what is found, the same by every way."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from counterpoise.tools.cli import main
from counterpoise.workers.sources.plain import PlainSource, as_source
from counterpoise.workers.sources.registry import open_source
from counterpoise.workers.tar.dataset import TarDataset
from tests.loader.auto import tar_data
from tests.loader.auto.tar_data import LENGTHS, Probing, tokens_of, write_shards

HERE = "tests.loader.auto.tar_data"
Costs = dict[str, dict[str, int]]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    return write_shards(folder)


def by_auto(dataset: Any, key: Any = None) -> Costs:
    """Return each sample's costs by its key, as the loader's steps have them."""
    loader = DataLoader(
        dataset, batch_size=1, shuffle=True, balance="auto", collate_fn=list, key=key
    )
    infos = [info for step in loader.steps() for info in step.infos]
    return {info.keys[0]: dict(info.costs) for info in infos}


def by_analyze(capsys: pytest.CaptureFixture[str], out: Path, *words: object) -> Costs:
    """Return each sample's costs by its key, as `analyze` writes them."""
    with pytest.raises(SystemExit) as end:
        main(["analyze", *map(str, words), "--out", str(out), "--workers", "1", "--ranks", "2"])
    assert end.value.code == 0, capsys.readouterr().err
    table = np.load(out / "index.npz")
    names = [name for name in table if name not in ("key", "source", "sources")]
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return {
        key: dict(zip(names, row, strict=True)) for key, row in zip(table["key"], rows, strict=True)
    }


def expected(dataset: Any) -> Costs:
    found = {}
    for index in range(len(dataset)):
        sample = dataset[index]
        found[dataset.key(index)] = {
            "tokens": len(sample["input_ids"]),
            "pixels": len(sample["pixels"]),
            "label_tokens": int((sample["labels"][1:] != -100).sum()),
        }
    return found


@pytest.mark.parametrize("transform", ["tokens_of", "Probing"])
def test_three_ways_into_a_tar_find_the_same_costs(
    transform: str, shards: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SHARDS", str(shards))
    made = tokens_of if transform == "tokens_of" else Probing()
    dataset = TarDataset(shards, made)
    told = {
        "source": "tar", "pattern": f"{shards}/part-{{0..1}}.tar",
        "transform": {"name": f"{HERE}:{transform}", "args": {}},
    }  # fmt: skip
    opened = open_source(told, None, [f"{HERE}:{transform}"])
    ways = {
        "TarDataset": by_auto(dataset),
        "a source by its description": by_auto(opened),
        "analyze": by_analyze(capsys, tmp_path / "a", shards, "--transform", f"{HERE}:{transform}"),
        "analyze, by name": by_analyze(capsys, tmp_path / "b", f"{HERE}:data"),
    }
    assert ways == dict.fromkeys(ways, expected(TarDataset(shards, tokens_of)))
    assert len({each["tokens"] for each in ways["TarDataset"].values()}) > 10


def test_real_shards_cost_the_same_by_each_way(data: Path, tmp_path: Path, capsys: Any) -> None:
    shard = data / "shards" / "mixed-00003.tar"
    dataset = TarDataset(shard, tokens_of, cache=tmp_path)
    found = by_auto(dataset)
    analyzed = by_analyze(
        capsys, tmp_path / "a", shard, "--transform", f"{HERE}:tokens_of", "--cache", tmp_path
    )
    assert found == analyzed == expected(dataset)
    assert len(found) == len(dataset) > 200


def test_who_has_a_probe_is_not_loaded_to_be_measured(shards: Path) -> None:
    loader = DataLoader(
        TarDataset(shards, Probing()), batch_size=1, shuffle=True, collate_fn=list,
        balance=Balance("auto", work="packed"),
    )  # fmt: skip
    Probing.decoded = 0
    assert len(list(loader)) == Probing.decoded == len(LENGTHS)


def waiting(dataset: Any, balance: Any) -> float:
    loader = DataLoader(
        dataset, batch_size=2, shuffle=True, balance=balance, ranks=Ranks(virtual=4),
        collate_fn=list,
    )  # fmt: skip
    sizes = [sum(len(each["input_ids"]) for each in batch) for batch in loader]
    steps = np.array(sizes[: len(sizes) // 4 * 4]).reshape(-1, 4)
    return float(1 - steps.mean() / steps.max(axis=1).mean())


PARTS: Any = {
    "a TarDataset": lambda tar, probed: tar,
    "a Subset": lambda tar, probed: Subset(tar, range(len(tar))),
    "a ConcatDataset": lambda tar, probed: ConcatDataset([tar]),
    "a Subset of a ConcatDataset": lambda tar, probed: Subset(ConcatDataset([tar]), range(40)),
    "a source around it": lambda tar, probed: PlainSource(tar),
    "beside one that has a probe": lambda tar, probed: ConcatDataset(
        [Subset(tar, range(20)), Subset(probed, range(20, 40))]
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_nothing_says_that_all_samples_cost_alike(name: str, shards: Path, caplog: Any) -> None:
    dataset = PARTS[name](TarDataset(shards, tokens_of), TarDataset(shards, Probing()))
    assert not as_source(dataset).knows_costs
    with caplog.at_level(logging.INFO, "counterpoise.loader.automatic"):
        balanced = waiting(dataset, Balance("auto", mode="window"))
    assert "all samples cost alike" not in caplog.text
    assert "tokens (input_ids)" in caplog.text
    assert balanced < 0.6 * waiting(dataset, "fixed")


def test_data_whose_parts_all_say_their_costs_are_believed(shards: Path) -> None:
    probed: Any = TarDataset(shards, Probing())
    for dataset in (probed, Subset(probed, [3, 1]), ConcatDataset([probed]), TarDataset(shards)):
        assert as_source(dataset).knows_costs


def test_equal_samples_of_a_transform_are_told_to_be_equal(tmp_path: Path, caplog: Any) -> None:
    dataset = TarDataset(write_shards(tmp_path, [9] * 40), len)
    with caplog.at_level(logging.INFO, "counterpoise.loader.automatic"):
        loader = DataLoader(dataset, 2, shuffle=True, balance="auto", collate_fn=list)
        assert len(list(loader)) == 20
    assert "nothing in the samples varies in size" in caplog.text


def test_budgets_of_what_nobody_says_are_refused_with_what_to_do(shards: Path) -> None:
    dataset, budgets = TarDataset(shards, tokens_of), {"tokens": 99}
    with pytest.raises(ValueError, match=r"budgets.*tokens"):
        DataLoader(dataset, shuffle=True, balance=Balance(budgets=budgets, samples_per_step=8))
    auto = Balance("auto", budgets=budgets, accumulate=2, counts="free")
    loader = DataLoader(dataset, 1, shuffle=True, balance=auto, collate_fn=list)
    infos = [info for step in loader.steps() for info in step.infos]
    assert sum(info.samples for info in infos) == 40


def test_workers_elsewhere_are_not_asked_for_costs_that_they_cannot_find(shards: Path) -> None:
    loader = DataLoader(
        TarDataset(shards, tokens_of), 1, shuffle=True, balance="auto",
        balancer="tcp://127.0.0.1:1", ranks=(0, 1),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"found by loading samples here.*probe\(raw\)"):
        next(iter(loader))


def test_analyze_says_what_it_found_and_keeps_rows_of_other_costs_apart(
    shards: Path, tmp_path: Path, capsys: Any
) -> None:
    words = ["analyze", str(shards), "--transform", f"{HERE}:tokens_of", "--json", "--ranks", "2"]
    for length in (0, 1):  # the second run must not read the parts that the first has kept
        if length:
            write_shards(shards, [each + 1 for each in LENGTHS])
        with pytest.raises(SystemExit):
            main([*words, "--out", str(tmp_path / "out"), "--workers", "1"])
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["costs_found"] == "tokens (input_ids), pixels"
        assert report["resources"]["tokens"]["sum"] == sum(LENGTHS) + length * len(LENGTHS)
    assert tar_data.LENGTHS == LENGTHS
