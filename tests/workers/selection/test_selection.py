"""Selections: which samples they have, and that what is known of them stays known."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.tools.analyze.scan.sources import ScanOptions, open_dataset
from counterpoise.workers import PlainSource, Probe, SampleError
from counterpoise.workers.sources.registry import open_source
from tests.tars import write_tar

SHARES = {"train": 0.9, "val": 0.1}


def table(count: int = 300) -> Any:
    lengths = np.random.default_rng(count).integers(1, 100, count)
    return PlainSource([{"n": int(n)} for n in lengths], cost={"tokens": lengths})


def write_shard(path: Path, count: int) -> None:
    members = dict[str, bytes]()
    for number in range(count):
        about = {"lang": "de" if number % 3 else "en"}
        members[f"{path.stem}{number:03}.txt"] = f"text {number}".encode()
        members[f"{path.stem}{number:03}.json"] = json.dumps(about).encode()
    write_tar(path, members)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    write_shard(tmp_path / "a.tar", 40)
    return tmp_path / "a.tar"


class Probed:
    """A transform that counts what it is asked."""

    deterministic = True

    def __init__(self) -> None:
        self.probes = self.loads = 0

    def __call__(self, raw: Any) -> Any:
        self.loads += 1
        return {"text": raw["txt"]}

    def probe(self, raw: Any) -> Probe:
        self.probes += 1
        return Probe(raw["__key__"], {"tokens": int(raw["txt"].split()[1])})

    def fingerprint(self) -> str:
        return "probed"


def keys(data: Any) -> list[str]:
    return [data.key(index) for index in range(len(data))]


@pytest.mark.parametrize(
    "where", [{"tokens": (10, 50)}, lambda sample: 10 <= sample.cost["tokens"] <= 50]
)
def test_where_chooses_by_cost(where: Any) -> None:
    data = table()
    costs = data.known_costs(["tokens"])[0]
    found: Any = cp.workers.Selection(data, where=where)
    wanted = np.flatnonzero((costs >= 10) & (costs <= 50))
    assert 0 < len(wanted) < len(data)
    assert keys(found) == [str(index) for index in wanted]
    assert found.known_costs(["tokens"])[0].tolist() == costs[wanted].tolist()
    assert found[0] == found.load(0, 3, 4) == data[int(wanted[0])]
    assert found.probe(1).cost == {"tokens": costs[wanted[1]]}
    with pytest.raises(IndexError):
        found.key(len(found))
    assert cp.workers.Selection(data, where=where, limit=5).indices.tolist() == wanted[:5].tolist()


def test_limits_may_be_open() -> None:
    costs = table().known_costs(["tokens"])[0]
    assert len(cp.workers.Selection(table(), where={"tokens": (90, None)})) == (costs >= 90).sum()
    assert len(cp.workers.Selection(table(), where={"tokens": (None, 9)})) == (costs <= 9).sum()


def test_where_looks_at_raw_forms_and_decodes_nothing(shard: Path, tmp_path: Path) -> None:
    transform = Probed()
    data = cp.TarDataset(shard, transform, cache=tmp_path / "kept")
    found = cp.workers.Selection(data, where=lambda sample: sample.raw["json"]["lang"] == "en")
    assert keys(found) == [f"a{number:03}" for number in range(0, 40, 3)]
    assert transform.probes == transform.loads == 0
    short = cp.workers.Selection(data, where={"tokens": (0, 9)}, limit=4)
    assert keys(short) == ["a000", "a001", "a002", "a003"]
    assert transform.probes == 4
    again = cp.TarDataset(shard, Probed(), cache=tmp_path / "kept")
    assert keys(cp.workers.Selection(again, where={"tokens": (0, 3)}, limit=4)) == keys(short)
    assert again.transform.probes == 0
    assert short.known(2).cost == {"tokens": 2}


def test_a_split_is_of_keys_and_stays_when_data_are_added() -> None:
    few, many = table(2000), table(5000)
    old, new = (
        cp.workers.split_by_key(few, SHARES, seed=3),
        cp.workers.split_by_key(many, SHARES, seed=3),
    )
    for name in SHARES:
        assert [key for key in keys(new[name]) if int(key) < 2000] == keys(old[name])
    assert sorted(keys(new["train"]) + keys(new["val"])) == sorted(keys(many))
    assert abs(len(new["val"]) - 500) < 70
    assert keys(cp.workers.split_by_key(many, SHARES, seed=4)["val"]) != keys(new["val"])
    wider = cp.workers.split_by_key(many, {"train": 0.8, "val": 0.2}, seed=3)
    assert {*keys(new["val"])} < {*keys(wider["val"])}


def test_a_broken_sample_stays_for_the_loader_to_name() -> None:

    class Data:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return index

        def probe(self, index: int) -> Probe:
            if index == 2:
                raise SampleError("2", "is broken")
            return Probe(str(index), {"tokens": 10 * index})

    assert keys(cp.workers.Selection(Data(), where={"tokens": (10, None)})) == ["1", "2", "3"]

    def wrong(sample: Any) -> bool:
        return bool(sample.cost["tiles"])

    with pytest.raises(KeyError) as error:
        cp.workers.Selection(Data(), where=wrong)
    assert "sample '0'" in error.value.__notes__[0]


def test_another_selection_is_other_data() -> None:
    def digest(**rules: Any) -> str:
        return cp.workers.Selection(table(), **rules).data_digest()

    assert digest(limit=7) == digest(limit=7)
    assert len({digest(limit=7), digest(limit=8), digest(where={"tokens": (50, 60)})}) == 3
    assert cp.workers.Selection(table(), limit=7).data_digest(3) == ""
    loader = cp.DataLoader(
        cp.workers.Selection(table(), limit=32), 4, shuffle=True, balance="fixed"
    )
    next(iter(loader))
    other = cp.DataLoader(cp.workers.Selection(table(), limit=36), 4, shuffle=True, balance="fixed")
    with pytest.raises(ValueError, match="other data"):
        other.load_state_dict(loader.state_dict())


def test_workers_elsewhere_get_what_was_chosen(shard: Path, tmp_path: Path) -> None:
    data = cp.TarDataset(shard, root=tmp_path)
    for found in (
        cp.workers.Selection(data, where=lambda sample: sample.raw["json"]["lang"] == "en"),
        cp.workers.split_by_key(data, SHARES)["train"],
    ):
        spec = json.loads(json.dumps(found.spec()))
        other = open_source(spec, tmp_path)
        assert keys(other) == keys(found)
        assert other.fingerprint() == found.fingerprint()
        assert other.load(1, 0, 0)["txt"] == found[1]["txt"]
        for wrong, says in (
            ({"samples": 39}, "same files"),
            ({"chosen": "AAAA"}, "description is none"),
            ({"chosen": "eJxjAAAAAQAB"}, "bytes, needed: 5"),
            ({"where": {}}, "not where"),
            ({"of": None}, "described by of, a source"),
        ):
            with pytest.raises(ValueError, match=says):
                open_source({**spec, **wrong}, tmp_path)
    with pytest.raises(ValueError, match="cannot read a list"):
        cp.workers.Selection(table(), limit=1).spec()


def test_changed_files_are_chosen_from_again(shard: Path) -> None:
    found = cp.workers.Selection(cp.TarDataset(shard), limit=50)
    assert not found.reopen_if_changed()
    write_shard(shard, 45)
    copy = pickle.loads(pickle.dumps(found))
    assert found.reopen_if_changed()
    assert len(found) == 45
    with pytest.raises(ValueError, match="make it anew"):
        copy.reopen_if_changed()


def test_a_pickled_one_has_its_samples_and_no_function() -> None:
    found = cp.workers.Selection(table(), where=lambda sample: sample.key.endswith("7"))
    assert keys(pickle.loads(pickle.dumps(found))) == keys(found) != []


def test_loops_and_analyze_take_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = cp.workers.Selection(table(), where={"tokens": (1, 60)}, limit=96)
    balance = cp.Balance(budgets={"tokens": 300}, samples_per_step=24, accumulate="auto")
    loader: Any = cp.DataLoader(data, balance=balance, shuffle=True, collate_fn=list)
    assert sorted(key for step in loader.steps() for info in step.infos for key in info.keys) == (
        sorted(keys(data))
    )
    (tmp_path / "my_selection.py").write_text(
        "import counterpoise as cp\nfrom counterpoise.workers import PlainSource\n"
        "whole = PlainSource([1] * 40, cost={'tokens': range(40)})\n"
        "data = cp.workers.Selection(whole, where={'tokens': (30, None)})\n"
    )
    monkeypatch.chdir(tmp_path)
    scanned = open_dataset("my_selection:data", ScanOptions())
    assert [scanned.probe(index).cost["tokens"] for index in (0, 9)] == [30, 39]


def test_a_mixture_takes_one_and_none_takes_a_mixture() -> None:
    parts = cp.workers.split_by_key(table(), SHARES)
    data = cp.Mixture({"a": (parts["train"], 1), "b": (parts["val"], 1)}, by="tokens", epoch=60)
    assert {key.partition("/")[2] for key in map(data.key, range(60))} <= {*keys(table())}
    with pytest.raises(ValueError, match="a Mixture inside of a Selection"):
        cp.DataLoader(cp.workers.Selection(data, limit=5), balance="fixed", shuffle=True)


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"where": 3}, "where is 3"),
        ({"where": {"tokens": 5}}, "least and the most"),
        ({"where": {"tiles": (1, 2)}}, "where= limits 'tiles'"),
        ({"where": {"tokens": (1000, None)}}, "no sample of list is left"),
        ({"split": {"part": "a"}}, "give part, shares"),
        ({"split": {"part": "a", "shares": {"a": 0.5}}}, "add up"),
        ({"split": {"part": "a", "shares": {"b": 1.0}}}, "shares are of b"),
    ],
)
def test_rules_that_cannot_be_applied_are_refused(rules: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cp.workers.Selection(table(), **rules)


def test_the_raw_form_of_other_data_is_the_sample_itself() -> None:
    found = cp.workers.Selection(table(), where=lambda sample: sample.raw["n"] > 90)
    assert 0 < len(found) < 60
    with pytest.raises(ValueError, match="it is a int; needed are samples that are dicts"):
        cp.workers.Selection([1, 2], where=lambda sample: bool(sample.raw))


def test_costs_that_only_loading_shows_are_not_asked_for() -> None:
    for data in (PlainSource([1, 2]), PlainSource([1, 2], cost=lambda sample: {"tokens": sample})):
        with pytest.raises(ValueError, match="only loading them would show it"):
            cp.workers.Selection(data, where={"tokens": (1, 2)})
        assert len(cp.workers.Selection(data, where=lambda sample: sample.key == "1")) == 1
