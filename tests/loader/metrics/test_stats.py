"""What a loop counts: against what it hands out, with a clock of the test's where time is said."""

import itertools
import json
import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.loader.metrics.families import LOADER_FAMILIES, loader_points
from counterpoise.loader.metrics.stats import MOST_REASONS, OTHER_REASONS, LoopStats
from tests.loader.metrics.texts import Texts

COUNT = 60
SIZES = [1 + n % 9 for n in range(COUNT)]
BROKEN = (7, 20)


def balanced(broken=(), **changes):
    given: dict[str, Any] = {
        "balance": cp.Balance("isf", budgets={"tokens": 40}, samples_per_step=12)
    }
    given |= {
        "cost": {"tokens": SIZES},
        "ranks": cp.Ranks(virtual=2),
        "shuffle": True,
        "collate_fn": list,
    }
    given |= {"on_error": "skip", "keep_stats": True}
    return cp.DataLoader(Texts(SIZES, broken), **(given | changes))


def plain(broken=(), **changes):
    given: dict[str, Any] = {
        "batch_size": 8,
        "collate_fn": list,
        "on_error": "skip",
        "keep_stats": True,
    }
    return cp.DataLoader(Texts(SIZES, broken), **(given | changes))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_counts_what_it_hands_out(workers):
    loader = plain(BROKEN, num_workers=workers)
    batches = list(loader)
    found = loader.stats()
    given = [sample for batch in batches for sample in batch]
    assert (found["batches"], found["steps"]) == (len(batches), len(batches)) == (8, 8)
    assert found["samples"] == len(given) == COUNT - len(BROKEN)
    assert found["bytes"] == sum(each.nbytes for each in given)
    assert found["holes"] == {"KeyError": 2}
    assert found["workers"] == workers
    assert (found["work_seconds"] is None) == (not workers)
    assert found["queue_batches"] == (0 if workers else None)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_step", [False, True])
def test_a_balanced_loop_counts_what_its_infos_say(workers, by_step):
    loader = balanced(BROKEN, num_workers=workers)
    pairs = (
        [
            pair
            for step in loader.steps()
            for pair in zip(step.microbatches, step.infos, strict=True)
        ]
        if by_step
        else list(loader.with_info())
    )
    found = loader.stats()
    infos = [info for _, info in pairs]
    assert found["batches"] == len(pairs)
    assert found["steps"] == len({info.step for info in infos}) == 5
    assert found["samples"] == sum(info.samples for info in infos) == COUNT - len(BROKEN)
    assert found["costs"] == {"tokens": sum(info.costs["tokens"] for info in infos)}
    assert found["holes"] == {"KeyError": 2}
    last = [info.costs["tokens"] for info in infos if info.step == 4]
    assert found["step_costs"] == {"tokens": sum(last)}


def test_an_imbalance_is_that_of_the_ranks_last_step_without_holes():
    loader, ratios = balanced(BROKEN), []
    for step in loader.steps():
        costs = [sum(i.costs["tokens"] for i in each.infos) for each in step.by_rank()]
        ratios.append(max(costs) / (sum(costs) / len(costs)))
        found = loader.stats()
        assert found["imbalance"]["delivered"]["tokens"] == pytest.approx(ratios[-1])
    assert found["mean_imbalance"]["delivered"]["tokens"] == pytest.approx(np.mean(ratios))
    assert found["mean_imbalance"]["forecast"] != found["mean_imbalance"]["delivered"]


def test_sources_of_a_mixture_are_counted_apart():
    mixture = cp.Mixture({"a": (Texts(SIZES), 1), "b": (Texts(SIZES), 3)})
    loader = cp.DataLoader(
        mixture, balance=cp.Balance("fixed"), batch_size=4, shuffle=True, collate_fn=list,
        cost=lambda sample: {"tokens": len(sample)}, keep_stats=True,
    )  # fmt: skip
    told = Counter()
    for _, info in loader.with_info():
        told.update(info.sources)
    assert loader.stats()["sources"] == told
    assert set(told) == {"a", "b"}
    points = dict(loader_points(loader.stats())["counterpoise_loader_samples_total"])
    assert points == {("a",): told["a"], ("b",): told["b"]}


def test_waits_are_apart_from_starts_and_training():
    now = itertools.chain([0.0], [1, 4, 5, 7, 9, 10], itertools.repeat(10.0))
    stats = LoopStats(clock=lambda: float(next(now)))
    stats.start()
    for _ in range(3):  # asked at 1, 5 and 9, returned at 4, 7 and 10
        stats.wait()
        stats.take_plain(torch.zeros(2, 3), 2)
    found = stats.summary()
    assert (found["start_seconds"], found["wait_seconds"], found["train_seconds"]) == (3, 3, 3)
    assert found["wait_share"] == 0.5
    assert found["last_step_wait_seconds"] == 1
    assert found["samples_per_second"] == 6 / 9
    assert found["bytes_per_second"] == 3 * 24 / 9


def test_time_between_iterations_is_nobodys():
    now = iter([0.0, 1, 2, 3, 100, 101, 102, 103])
    stats = LoopStats(clock=lambda: float(next(now)))
    for _ in range(2):
        stats.start()
        stats.wait()
        stats.take_plain(0, 1)
        stats.end()  # looks at the clock, to save
    found = stats.summary()
    assert (found["start_seconds"], found["train_seconds"]) == (2, 0)


def test_reasons_of_holes_are_bounded():
    class Hole:
        def __init__(self, reason):
            self.reason = reason

    stats = LoopStats()
    stats.take_holes([Hole(f"Error{n}: {n}") for n in range(2 * MOST_REASONS)])
    assert len(stats.holes) == MOST_REASONS + 1
    assert stats.holes[OTHER_REASONS] == MOST_REASONS


def test_a_loop_that_counts_nothing_says_what_to_give():
    loader = plain(keep_stats=False)
    assert type(iter(loader)).__name__ == "InlineIterator"
    with pytest.raises(ValueError, match="keep_stats=True"):
        loader.stats()
    with pytest.raises(ValueError, match="keep_stats=True"):
        loader.metrics()
    with pytest.raises(ValueError, match="there is no folder"):
        plain(keep_stats="no/such/folder/run.json")


def test_stats_are_kept_in_a_file_for_each_rank(tmp_path, monkeypatch):
    for rank in (0, 3):
        monkeypatch.setenv("RANK", str(rank))
        loader = plain(keep_stats=tmp_path / "run.json")
        list(loader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-3.json", "run.json"]
    kept = json.loads((tmp_path / "run-3.json").read_text())
    assert kept["rank"] == 3
    assert kept == json.loads(json.dumps(loader.stats()))


def test_a_copy_of_a_loader_counts_from_nothing():
    loader = balanced()
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert again.stats()["batches"] == 0
    list(again)
    assert again.stats()["batches"] == loader.stats()["batches"]


def test_what_is_ready_is_counted_with_persistent_workers_that_are_left():
    loader = plain(num_workers=2, persistent_workers=True)
    for _ in zip(range(2), loader, strict=False):
        pass
    list(loader)
    assert loader.stats()["queue_batches"] == 0


# --- Prometheus


def test_names_follow_prometheus_conventions():
    for family in LOADER_FAMILIES.values():
        check_name(family)


def check_name(family):
    """Hold a metric against the conventions: base units, _total of counters only, a text."""
    assert re.fullmatch(r"counterpoise_[a-z]+(_[a-z]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    unit = re.compile(r"_(ms|milliseconds|minutes|kb|mb|gib|percent)(_|$)")
    assert not unit.search(family.name)
    assert family.about.endswith(".")
    assert len(family.about) > 20
    assert not {"job", "instance"} & {*family.labels}  # Prometheus' own
    assert all(re.fullmatch("[a-z_]+", label) for label in family.labels)


def test_prometheus_gets_every_number_of_the_stats():
    client = pytest.importorskip("prometheus_client")
    loader = balanced(BROKEN, num_workers=2, ranks=cp.Ranks(virtual=2, name="train"))
    list(loader)
    registry = client.CollectorRegistry()
    registry.register(loader.metrics())
    registry.register(plain().metrics())  # another loader, of the same names
    labels = {"rank": "0", "loader": "train"}
    stats = loader.stats()

    def value(name, **more):
        return registry.get_sample_value(f"counterpoise_loader_{name}", labels | more)

    assert value("batches_total") == stats["batches"]
    assert value("samples_total", source="") == stats["samples"]
    assert value("blocked_seconds_total") == stats["wait_seconds"]
    assert value("holes_total", reason="KeyError") == 2
    assert value("costs_total", resource="tokens") == stats["costs"]["tokens"]
    ratio = value("step_imbalance_ratio", kind="delivered", resource="tokens")
    assert ratio == stats["imbalance"]["delivered"]["tokens"]
    told = {each.name for each in registry.collect()}
    assert told == {each.name.removesuffix("_total") for each in LOADER_FAMILIES.values()}


def test_flat_stats_are_numbers():
    loader = balanced(BROKEN)
    list(loader)
    found = loader.stats(flat=True)
    assert found["loader/holes/KeyError"] == 2
    assert all(isinstance(each, int | float) for each in found.values())


class Reported:
    """Ray's metrics, written down."""

    values: dict = {}  # noqa: RUF012

    def __init__(self, name, description, tag_keys):  # noqa: ARG002
        self.name, self.keys = name, {*tag_keys}

    def _key(self, tags):
        assert {*tags} == self.keys
        return self.name, *(tags[key] for key in sorted(tags) if key not in ("rank", "loader"))

    def set(self, value, tags):
        self.values[self._key(tags)] = value

    def inc(self, value, tags):
        assert value > 0
        self.values[self._key(tags)] = self.values.get(self._key(tags), 0) + value


def test_ray_gets_the_growth_of_counters(monkeypatch):
    metrics = pytest.importorskip("ray.util.metrics")
    monkeypatch.setattr(metrics, "Counter", Reported)
    monkeypatch.setattr(metrics, "Gauge", Reported)
    loader = balanced(BROKEN)
    told = loader.metrics()
    for _ in loader:
        told.to_ray()
    told.to_ray()
    stats = loader.stats()
    assert Reported.values["counterpoise_loader_batches",] == stats["batches"]
    assert Reported.values["counterpoise_loader_holes", "KeyError"] == 2
    ratio = Reported.values["counterpoise_loader_step_imbalance_ratio", "delivered", "tokens"]
    assert ratio == stats["imbalance"]["delivered"]["tokens"]
