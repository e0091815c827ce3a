"""Mixtures in loops: plain, balanced in every mode, resumed with other ranks or workers."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import counterpoise as cp
from counterpoise.tools.analyze.scan.sources import ScanOptions, open_dataset
from counterpoise.workers import PlainSource, SampleError
from tests.loader.mixtures import (
    SIZES,
    WEIGHTS,
    Items,
    Tiles,
    expected,
    loader,
    mixture,
    source,
    steps_of,
)


def test_a_balanced_loop_has_the_mixture_step_by_step() -> None:
    data = mixture()
    made = loader(data)
    assert len(data) == 240
    assert made.num_steps == 10
    for epoch in range(2):
        order = expected(data, epoch)
        assert steps_of(made) == [sorted(order[at : at + 24]) for at in range(0, 240, 24)]
    had = Counter[str]()
    for step in made.steps():
        for info in step.infos:
            assert sum(info.sources.values()) == len(info.keys)
            had.update(info.sources)
        total = sum(had.values())
        assert all(abs(had[name] - total * WEIGHTS[name] / 6) < 1 for name in SIZES)


def test_samples_are_those_of_their_keys_and_repeats_draw_their_own() -> None:
    data = mixture(drawn=True)
    draws: dict[str, list[float]] = {}
    for _, (batch, info) in enumerate(loader(data).with_info()):
        for sample, key in zip(batch, info.keys, strict=True):
            assert sample["id"] == f"{data.find_source(key)}-{key.partition('/')[2]}"
            draws.setdefault(sample["id"], []).append(sample["draw"])
    small = [each for name, each in draws.items() if name.startswith("small")]
    assert sum(map(len, small)) == 40
    drawn = [draw for each in draws.values() for draw in each]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_every_mode_delivers_each_row_of_the_epoch_once(mode: Any, by: str) -> None:
    data = mixture(by=by)
    balance = cp.Balance(
        budgets={"tokens": 200}, samples_per_step=24, accumulate="auto", mode=mode, seed=3
    )
    found = [key for step in steps_of(loader(data, balance=balance)) for key in step]
    assert sorted(found) == sorted(expected(data))


def test_auto_finds_what_samples_of_a_mixture_cost() -> None:
    parts = {"a": ([torch.zeros(n % 50 + 1) for n in range(60)], 1),
             "b": ([torch.zeros(n % 90 + 1) for n in range(60)], 1)}  # fmt: skip
    data = cp.Mixture(parts, epoch=80)
    made = cp.DataLoader(
        data, batch_size=4, shuffle=True, balance="auto", ranks=cp.Ranks(virtual=2), collate_fn=list
    )
    found = [key for step in steps_of(made) for key in step]
    assert sorted(found) == sorted(expected(data, seed=0))


def test_a_state_goes_on_at_any_position_with_other_workers_and_ranks() -> None:
    whole = steps_of(loader(mixture()))
    made = loader(mixture())
    states = []
    for step in made.steps():
        assert len(states) == step.number
        states.append(json.dumps(made.state_dict()))
    for at in range(0, len(states), 3):
        other = loader(mixture(), ranks=(1, 2, 3, 4)[at % 4])
        other.load_state_dict(json.loads(states[at]))
        assert steps_of(other) == whole[at + 1 :]
    with_workers = loader(mixture(), workers=2)
    with_workers.load_state_dict(json.loads(states[4]))
    assert steps_of(with_workers) == whole[5:]
    assert max(map(len, states)) < 4096


def test_another_recipe_is_other_data() -> None:
    made = loader(mixture())
    next(made.steps())
    state = made.state_dict()
    with pytest.raises(ValueError, match="other data"):
        loader(mixture(schedule=[(100, {"web": 1})])).load_state_dict(state)


def test_a_checkpoint_goes_on_with_other_weights_and_sources() -> None:
    """In one call: the new recipe takes the counters of the old at a ledger."""
    old, made = mixture(), loader(mixture())
    for epoch in range(2):
        for step in made.steps():
            if (epoch, step.number) == (1, 4):
                break
    state = json.loads(json.dumps(made.state_dict()))
    begin = json.loads(json.dumps(old.counters(state)))
    assert begin == json.loads(json.dumps(old.counters(120, epoch=1, seed=3)))
    sources = {name: (source(name), weight) for name, weight in (("web", 1), ("docs", 4))}
    new = cp.Mixture({**sources, "new": (["x"] * 30, 5)}, epoch=60, begin=begin)
    found = expected(new)
    had = Counter(map(new.find_source, found))
    assert had == {"web": 6, "docs": 24, "new": 30}
    for name in ("web", "docs"):
        # What was left of its pass comes first, and none of what it had of that.
        before = [key for key in expected(old, 1)[:120] if key.startswith(name)]
        after = [key for key in found if key.startswith(name)]
        passed, samples = begin[name]
        rest = min(SIZES[name] - samples, len(after))
        last = before[-samples:] if samples else []
        names = [key.partition("/")[2] for key in (*last, *after[:rest])]
        assert len(set(names)) == len(names)
        assert passed >= old.rows.recipe.passes[old.names.index(name)]
    assert len({key for key in found if key.startswith("new")}) == 30


def test_counters_of_another_ledger_are_refused() -> None:
    made = loader(mixture())
    batches = iter(made)
    next(batches)
    with pytest.raises(ValueError, match="saved inside step 0"):
        mixture().counters(made.state_dict())
    with pytest.raises(ValueError, match="of other data"):
        mixture(schedule=[(5, {"web": 1})]).counters(made.state_dict())
    with pytest.raises(ValueError, match="its kind is 'plain'"):
        mixture().counters(cp.DataLoader(mixture(), 4, collate_fn=list).state_dict())
    with pytest.raises(ValueError, match="samples is 241"):
        mixture().counters(241)


def test_ledgers_and_counters_of_100_sources_are_small() -> None:
    names = [f"a-source-of-data-{number}" for number in range(100)]
    parts = {name: (PlainSource([1] * 50, cost={"tokens": [3] * 50}), 1 + k)
             for k, name in enumerate(names)}  # fmt: skip
    data = cp.Mixture(parts, epoch=4000)
    made = loader(data)
    for step in made.steps():
        if step.number == 90:
            break
    state = made.state_dict()
    assert len(json.dumps(state)) < 1024
    assert len(json.dumps(data.counters(state))) < 4096
    assert sum(step.infos[0].sources.values()) == len(step.infos[0].keys)
    assert [*step.infos[0].sources] == names


def test_an_epoch_may_go_on_where_the_last_one_stopped() -> None:
    data = mixture(repeat="continue", epoch=100)
    made = loader(data)
    had = {name: list[str]() for name in SIZES}
    for epoch in range(9):
        found = [key for step in steps_of(made) for key in step]
        assert sorted(found) == sorted(expected(data, epoch))
        assert len({*found}) == len(found) == 100
        for key in expected(data, epoch):
            had[data.find_source(key)].append(key.partition("/")[2])
    for name, keys in had.items():
        for begin in range(0, len(keys) - SIZES[name], SIZES[name]):
            # Each pass has every sample once, wherever epochs began.
            assert len({*keys[begin : begin + SIZES[name]]}) == SIZES[name]
    begun = data.counters(30, epoch=8, seed=3)
    totals = Counter(map(data.find_source, expected(data, 8)[:30]))
    for name, (passes, samples) in begun.items():
        per_epoch = len(had[name]) // 9
        assert passes * SIZES[name] + samples == 8 * per_epoch + totals[name]


def test_a_plain_loop_has_the_mixture_in_order() -> None:
    data = mixture(seed=3)
    for workers in (0, 2):
        made = cp.DataLoader(
            data, batch_size=8, num_workers=workers, persistent_workers=workers > 0,
            collate_fn=list,
        )  # fmt: skip
        for epoch in range(2):
            data.set_epoch(epoch)
            found = [sample["id"] for batch in made for sample in batch]
            wanted = [(cp.Mixture.find_source(data, key), key) for key in expected(data, epoch)]
            assert found == [f"{name}-{key.partition('/')[2]}" for name, key in wanted]
    state: dict[str, Any] = {}
    made = cp.DataLoader(data, batch_size=8, collate_fn=list)
    data.set_epoch(0)
    whole = list(made)
    for number, _ in enumerate(made):
        if number == 4:
            state = made.state_dict()
            break
    other = cp.DataLoader(data, batch_size=8, collate_fn=list)
    other.load_state_dict(state)
    assert list(other) == whole[5:]


def test_torchs_own_loader_takes_it() -> None:
    data: Any = mixture()
    batches = torch.utils.data.DataLoader(data, 8, collate_fn=list)
    found = Counter(each["id"].partition("-")[0] for batch in batches for each in batch)
    assert found == {"web": 120, "docs": 80, "small": 40}


def test_analyze_takes_one_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_mixture.py").write_text(
        "import counterpoise as cp\nfrom counterpoise.workers import PlainSource\n"
        "a = PlainSource([1] * 40, cost={'tokens': [5] * 40})\n"
        "b = PlainSource([1] * 40, cost={'tokens': [9] * 40})\n"
        "data = cp.Mixture({'a': (a, 3), 'b': (b, 1)}, epoch=80)\n"
    )
    monkeypatch.chdir(tmp_path)
    source = open_dataset("my_mixture:data", ScanOptions())
    costs = Counter(source.probe(index).cost["tokens"] for index in range(len(source)))
    assert costs == {5: 60, 9: 20}


def test_a_broken_sample_is_named_by_its_row() -> None:
    def item(index: int) -> Any:
        if index == 3:
            raise SampleError("3", "is broken", "a.tar")
        return {"n": index}

    data = cp.Mixture({"a": (PlainSource(Items(item, 9), cost={"tokens": [1] * 9}), 1),
                       "b": (source("web"), 1)}, epoch=36)  # fmt: skip
    made = loader(data, on_error="skip")
    holes = [hole for step in made.steps() for info in step.infos for hole in info.holes]
    assert sorted(holes) == ["a/3", "a@2/3"]


def test_costs_that_only_some_sources_have_are_0_elsewhere() -> None:
    data = cp.Mixture({"text": (source("web"), 1), "tiles": (Tiles(), 1)}, by="tokens", epoch=40)
    assert data.resources == ("tokens", "tiles")
    rows = data.rows.recipe.order(0, 0, True).tolist()
    assert {(data.find_source(data.rows.key(row)), data.rows.probe(row).cost["tiles"])
            for row in rows} == {("text", 0), ("tiles", 2)}  # fmt: skip


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("end", ["first", "all", "docs"])
def test_an_epoch_by_tokens_has_all_of_the_source_that_ends_it_in_every_loop(
    end: str, shuffle: bool
) -> None:
    def loop(ranks: int = 2) -> Any:
        data = mixture(by="tokens", epoch=end)
        balance = cp.Balance(budgets={"tokens": 120}, samples_per_step=24, accumulate="auto")
        return cp.DataLoader(
            data, balance=balance, shuffle=shuffle, ranks=cp.Ranks(virtual=ranks), collate_fn=list
        )

    data, made, lengths = mixture(by="tokens", epoch=end), loop(), set[int]()
    for epoch in range(3):
        rows = data.rows.recipe.order(0, epoch, shuffle).tolist()
        found = steps_of(made)
        keys = [key for step in found for key in step]
        assert sorted(keys) == sorted(map(data.rows.key, rows))
        assert len(found) == made.num_steps
        lengths.add(len(rows))
        first = Counter(map(data.find_source, [key for key in keys if "@" not in key]))
        used_up = [name for name in SIZES if first[name] == SIZES[name]]
        assert used_up == {"first": ["small"], "all": [*SIZES]}.get(end, ["docs", "small"])
    assert len(lengths) == 1
    sampler = cp.BalancedBatchSampler(data, "fixed", ranks=(0, 1), batch_size=8, shuffle=shuffle)
    assert len(list(sampler)) == len(sampler)
    begun = loop()
    begun.set_epoch(1)
    whole, states = steps_of(begun), list[Any]()
    for _ in begun.steps():
        states.append(begun.state_dict())
    for at, state in enumerate(states[:-1]):
        other = loop(ranks=1 + at % 3)
        other.load_state_dict(state)
        assert steps_of(other) == whole[at + 1 :]


def test_plans_that_look_at_no_cost_take_sources_that_say_none() -> None:
    known: Any = source("web")
    data = cp.Mixture({"a": (known, 1), "b": ([1, 2], 1)}, epoch=10)
    lengths = known.known_costs(["tokens"])[0].tolist()
    made = cp.DataLoader(
        data, batch_size=5, shuffle=True, balance="fixed", ranks=cp.Ranks(virtual=2),
        collate_fn=list,
    )  # fmt: skip
    sampler = cp.BalancedBatchSampler(data, "fixed", ranks=(0, 1), batch_size=10)
    for info in [info for step in made.steps() for info in step.infos]:
        told = [int(key.partition("/")[2]) for key in info.keys if data.find_source(key) == "a"]
        assert info.costs == {"tokens": sum(lengths[index] for index in told)}
    assert len(list(sampler)) == 1


def test_auto_counts_each_sample_of_all_sources_where_nothing_varies() -> None:
    known = PlainSource([1] * 9, cost={"tokens": [3] * 9})
    data = cp.Mixture({"a": (known, 1), "b": ([1] * 9, 1)}, epoch=18)
    made = cp.DataLoader(
        data, batch_size=3, shuffle=True, balance="auto", ranks=cp.Ranks(virtual=2), collate_fn=list
    )
    costs = [info.costs for step in made.steps() for info in step.infos]
    assert costs == [{"samples": 3}] * 6


def test_temperature_makes_weights_of_sizes() -> None:
    parts = {"a": list(range(100)), "b": list(range(25))}
    equal = cp.Mixture(parts, epoch=60, temperature=1e9).rows.recipe
    square = cp.Mixture(parts, epoch=60, temperature=2).rows.recipe
    sizes = cp.Mixture(parts, epoch=60).rows.recipe
    shares = [(r.order(0, 0) < r.first_rows[1]).sum() for r in (equal, square, sizes)]
    assert shares == [30, 40, 48]


def test_a_batch_sampler_takes_a_mixture() -> None:
    data, balance = mixture(), cp.Balance(budgets={"tokens": 120}, samples_per_step=24, seed=3)
    balance = dataclasses.replace(balance, accumulate="auto")

    def made() -> tuple[cp.BalancedBatchSampler, Any]:
        sampler = cp.BalancedBatchSampler(data, balance, ranks=(0, 1))
        rows: Any = data.rows
        return sampler, torch.utils.data.DataLoader(rows, batch_sampler=sampler, collate_fn=list)

    sampler, batches = made()
    steps: dict[int, list[str]] = {}
    for number, batch in enumerate(batches):
        info = sampler.info(number)
        steps.setdefault(info.step, []).extend(info.keys)
        assert [each["id"].partition("-")[0] for each in batch] == [
            data.find_source(key) for key in info.keys
        ]
        assert sum(info.sources.values()) == len(batch)
    order = expected(data)
    assert [sorted(keys) for keys in steps.values()] == [
        sorted(order[at : at + 24]) for at in range(0, 240, 24)
    ]
    other, rest = made()
    other.load_state_dict(sampler.state_dict(delivered=5))
    assert len(list(rest)) == number - 4
    with pytest.raises(ValueError, match="costs of all samples"):
        cp.BalancedBatchSampler(cp.Mixture({"a": Tiles()}), balance, ranks=(0, 1))
