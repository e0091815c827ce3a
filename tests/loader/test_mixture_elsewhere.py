"""Mixtures whose samples a balancer hands out, or workers on other machines open."""

import json
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.balancer.planning.mixing.recipe import order_of_rows
from counterpoise.loader import assembly
from counterpoise.workers.sources.registry import open_source
from tests.loader.local.both_ways import by_balancer
from tests.loader.mixtures import loader, mixture, steps_of
from tests.tars import write_tar


def test_a_balancer_hands_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Any]:
        made = loader(mixture())
        batches = [(batch, info.keys, info.sources) for batch, info in made.with_info()]
        first = loader(mixture())
        for step in first.steps():
            if step.number == 3:
                break
        second = loader(mixture())
        second.load_state_dict(first.state_dict())
        return [batches, made.num_steps, steps_of(second)]

    local = found()
    monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    assert found() == local


def test_workers_elsewhere_open_its_parts(tmp_path: Path) -> None:
    for name, count in (("a", 9), ("b", 5)):
        write_shard(tmp_path / f"{name}.tar", count)
    parts = {n: (cp.TarDataset(tmp_path / f"{n}.tar", root=tmp_path), 1) for n in "ab"}
    rows = cp.Mixture(parts, epoch=20).rows
    spec = json.loads(json.dumps(rows.spec()))
    other = open_source(spec, tmp_path)
    assert [other.key(n) for n in range(len(other))] == [rows.key(n) for n in range(len(rows))]
    assert other.fingerprint() == rows.fingerprint()
    spec["recipe"]["sizes"] = [9, 6]
    with pytest.raises(ValueError, match="same files"):
        open_source(spec, tmp_path)
    with pytest.raises(ValueError, match="description is none"):
        open_source({"source": "mixture"}, tmp_path)
    with pytest.raises(ValueError, match="source 'web' of the mixture: workers elsewhere cannot"):
        mixture().rows.spec()


def write_shard(path: Path, count: int) -> None:
    write_tar(path, {f"{path.stem}{number}.txt": b"ab" for number in range(count)})


def test_a_mixture_by_cost_goes_to_a_balancer_with_its_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = steps_of(loader(mixture(by="tokens")))
    monkeypatch.setattr(assembly, "choose_connection", by_balancer)
    assert steps_of(loader(mixture(by="tokens"))) == local


def test_costs_too_many_for_a_job_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("a", 9), ("b", 5)):
        write_shard(tmp_path / f"{name}.tar", count)
    parts = {n: cp.TarDataset(tmp_path / f"{n}.tar") for n in "ab"}
    data = cp.Mixture(parts, by="bytes", epoch=20)
    balance = cp.Balance(budgets={"bytes": 64}, samples_per_step=4, accumulate="auto")
    remote: dict[str, Any] = {
        "balance": balance,
        "ranks": 1,
        "balancer": "tcp://127.0.0.1:1",
        "timeout": 0.1,
    }
    with pytest.raises(TimeoutError):
        next(iter(loader(data, **remote)))
    monkeypatch.setattr("counterpoise.loader.assembly.MOST_COSTS", 10)
    with pytest.raises(ValueError, match="a balancer takes 10"):
        next(iter(loader(data, **remote)))


def test_workers_elsewhere_open_a_mixture_by_cost(tmp_path: Path) -> None:
    for name, count in (("a", 9), ("b", 5)):
        write_shard(tmp_path / f"{name}.tar", count)
    parts = {n: cp.TarDataset(tmp_path / f"{n}.tar", root=tmp_path) for n in "ab"}
    rows = cp.Mixture(parts, by="bytes", epoch=40).rows
    spec = json.loads(json.dumps(rows.spec()))
    assert "costs" not in spec["recipe"]
    other = open_source(spec, tmp_path)
    assert [other.key(n) for n in range(len(other))] == [rows.key(n) for n in range(len(rows))]
    facts = json.loads(json.dumps(rows.recipe.facts()))
    for epoch in range(2):
        order = order_of_rows(facts, len(rows), 3, epoch, True)
        assert order.tolist() == rows.recipe.order(3, epoch, True).tolist()
    for wrong in ({"costs": ["AA"]}, {"costs": ["eJw=", "eJw="]}, {"known_passes": [0, 1]}):
        with pytest.raises(ValueError, match="description is none"):
            order_of_rows({**facts, **wrong}, len(rows), 3, 0, True)
