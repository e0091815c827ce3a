"""A cost that cannot be planned: an error or a hole with one message, wherever it was found."""

import re
from typing import Any

import numpy as np
import pytest

from counterpoise import OnError, Ranks
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader, LoaderError
from counterpoise.workers.sources.costs import MAX_COST, bad_cost, checked_column, checked_cost
from counterpoise.workers.sources.dead_letters import read_letters
from counterpoise.workers.sources.interface import Probe, SampleError
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

BAD = [float("nan"), float("inf"), -1, 2.7, 2**63]
COUNT, WRONG = 16, 5


class Probed(made.Augmented):
    """One sample's probe finds a bad cost."""

    def __init__(self, value):
        super().__init__(COUNT)
        self.value = value

    def probe(self, index):
        found = super().probe(index)
        if index == WRONG:
            found.cost["tokens"] = self.value
        return found


class Whole(Probed):
    """A source that nothing is wrapped around."""

    def load(self, index, epoch, seed):  # noqa: ARG002
        return self[index]

    def fingerprint(self):
        return "whole"


class Bare(Probed):
    """One sample's probe gives a number, or (`inside`) a probe whose costs are one."""

    def __init__(self, value, inside):
        super().__init__(value)
        self.inside = inside

    def probe(self, index):
        if index != WRONG:
            return made.Augmented.probe(self, index)
        return Probe(self.key(index), self.value) if self.inside else self.value


class Measure:
    """A cost function that finds a bad cost for one sample; it can be sent to workers."""

    def __init__(self, value):
        self.value = value

    def __call__(self, sample):
        wrong = int(sample["input_ids"][0]) == WRONG
        return {"tokens": self.value if wrong else len(sample["input_ids"])}


def probing(value, **changes):
    return make(Probed(value), **changes)


def whole(value, **changes):
    return make(Whole(value), **changes)


def measuring(value, **changes):
    return make(made.Augmented(COUNT), cost=Measure(value), **changes)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("inside", [False, True], ids=["in place of a probe", "in place of costs"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_bare_number_is_refused_by_name_too(value, inside, workers, tmp_path):
    found = f"the cost is {value!r}" if inside else f"probe() gave {value!r}"
    needed = "{resource: cost, ...}" if inside else "Probe(key, {resource: cost, ...})"
    reason = f"{found}, needed is {needed}"
    refuse_and_skip(
        lambda _, **more: make(Bare(value, inside), **more), value, tmp_path, workers, reason
    )


def test_a_bare_number_of_a_worker_process_is_refused_by_name_too(tmp_path):
    reason = "probe() gave -1, needed is Probe(key, {resource: cost, ...})"
    refuse_and_skip(lambda _, **more: make(Bare(-1, False), **more), -1, tmp_path, 1, reason)


def make(dataset, **changes):
    given: dict[str, Any] = {
        "grouping": "isf", "samples_per_step": 8, "accumulate": "auto", "ranks": Ranks(virtual=1),
        "collate_fn": made.as_list, "shuffle": False,
    }  # fmt: skip
    return balanced_loader(dataset, **given, **changes)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("loader", [probing, whole, measuring])
def test_without_workers_it_is_an_error_or_a_hole(loader, value, tmp_path):
    refuse_and_skip(loader, value, tmp_path, workers=0)


@pytest.mark.parametrize(
    ("loader", "value"),
    [
        (probing, float("nan")),
        (measuring, 2**63),
        pytest.param(probing, 2**63, marks=pytest.mark.long),
        pytest.param(measuring, float("nan"), marks=pytest.mark.long),
    ],
)
def test_with_workers_it_is_the_same(loader, value, tmp_path):
    refuse_and_skip(loader, value, tmp_path, workers=1)


def refuse_and_skip(loader, value, tmp_path, workers, reason=""):
    reason = reason or bad_cost("tokens", value)
    with pytest.raises(LoaderError, match=re.escape(reason)) as raised:
        list(loader(value, num_workers=workers))
    assert f"k{WRONG:04}" in str(raised.value)
    letters = tmp_path / "letters.jsonl"
    skipping = loader(
        value, num_workers=workers, on_error=OnError("skip", dead_letter=str(letters))
    )
    keys, holes = [], []
    for _ in skipping:
        keys += skipping.step_info.keys
        holes += skipping.step_info.holes
    skipping.close()
    assert holes == [f"k{WRONG:04}"]
    assert sorted(keys) == [f"k{index:04}" for index in range(COUNT) if index != WRONG]
    assert [letter.reason for letter in read_letters(letters)] == [reason]


@pytest.mark.parametrize("value", BAD)
def test_the_samplers_columns_are_refused_alike(value):
    with pytest.raises(SampleError, match=re.escape(f"sample '1': {bad_cost('tokens', value)}")):
        BalancedBatchSampler({"tokens": [1, value]}, Balance(budgets={"tokens": 9}), ranks=1)


def test_numpy_integers_are_costs_and_the_largest_is_one():
    assert checked_column("tokens", [0, MAX_COST]).tolist() == [0, MAX_COST]
    assert type(checked_cost("tokens", checked_column("tokens", [3])[0], "a")) is int
    with pytest.raises(SampleError):
        checked_column("tokens", [0, MAX_COST + 1])


@pytest.mark.parametrize("value", [5, np.int64(5), [5], None])
def test_a_cost_that_is_not_by_resource_is_refused_when_the_loader_is_made(value):
    for dataset in (range(8), [{"a": 1}] * 8):
        with pytest.raises(
            TypeError, match=r"cost\(sample\) returned .*mapping from each resource"
        ):
            DataLoader(dataset, shuffle=True, balance="balanced", cost=lambda _: value)
