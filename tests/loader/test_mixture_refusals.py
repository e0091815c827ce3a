"""Mixtures that contradict themselves or their loop are refused, with what to do."""

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import WeightedRandomSampler

import counterpoise as cp
from counterpoise.tools.analyze.scan.measure import measure_task
from counterpoise.tools.analyze.scan.sources import ScanOptions, ScanTask
from counterpoise.workers import PlainSource
from tests.loader.mixtures import loader, mixture, source


@pytest.mark.parametrize(
    ("given", "others", "says"),
    [
        ({}, {}, "needs sources by name"),
        ({"a/b": [1]}, {}, "without '/@'"),
        ({"first": [1]}, {}, "another name"),
        ({"a": ([1], 1), "b": [1]}, {}, "'b' has no weight"),
        ({"a": ([1], 1)}, {"temperature": 2}, "contradict"),
        ({"a": [1]}, {"temperature": 0}, "must be positive"),
        ({"a": ([1], -1)}, {}, "not negative"),
        ({"a": ([1], 0)}, {}, "not all 0"),
        ({"a": [1]}, {"epoch": "b"}, "epoch is 'b'"),
        ({"a": [1]}, {"repeat": ["b"]}, "repeat is"),
        ({"a": [1]}, {"schedule": [(5, {"b": 1})]}, "schedule names 'b'"),
        ({"a": [1]}, {"schedule": [(0, {"a": 1})]}, "beyond 0"),
        ({"a": [1]}, {"epoch": 2, "repeat": False}, "an epoch of 2 samples"),
        ({"a": [1]}, {"by": "tokens"}, "needs to know what all samples cost"),
        (
            {"a": PlainSource([1], cost={"n": [1]})},
            {"by": "n", "repeat": "continue"},
            "give begin=counters",
        ),
        (
            {"a": PlainSource([1], cost=lambda sample: {"tokens": sample})},
            {"by": "tokens"},
            "needs to know",
        ),
        ({"a": (PlainSource([1], cost={"n": [1]}), 1)}, {"by": "tokens"}, "cost nothing"),
        ({"a": [1]}, {"begin": {"a": (0, 0)}}, "begin= needs"),
        ({"a": [1]}, {"begin": {"a": (0, 1)}, "epoch": 3}, "has 1 samples"),
    ],
)
def test_what_contradicts_itself_is_refused(given: Any, others: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cp.Mixture(given, **others)


def test_only_some_known_costs_are_refused_where_they_are_planned_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = cp.Mixture({"a": (source("web"), 1), "b": ([1, 2], 1)}, epoch=10)
    budgets = cp.Balance(budgets={"tokens": 90}, samples_per_step=4, accumulate="auto")
    monkeypatch.setattr(sys.modules[__name__], "mixed", data, raising=False)
    for make in (
        lambda: loader(data),
        lambda: cp.BalancedBatchSampler(data, budgets, ranks=(0, 1)),
        lambda: measure_task(ScanTask("dataset", (f"{__name__}:mixed",), 0, 10), ScanOptions()),
    ):
        with pytest.raises(ValueError, match="'b' of the mixture does not say"):
            make()


def test_a_weighted_sampler_is_refused_with_its_name() -> None:
    data, weighted = [torch.zeros(1)] * 4, WeightedRandomSampler([1.0] * 4, 4)
    with pytest.raises(ValueError, match=r"cp\.Mixture"):
        cp.DataLoader(data, 2, balance="balanced", sampler=weighted, ranks=(0, 1))


def test_a_mixture_inside_of_other_data_is_refused() -> None:
    data: Any = mixture()
    for other in (
        torch.utils.data.Subset(data, range(100)),
        torch.utils.data.ConcatDataset([data, data]),
        PlainSource(data, cost=lambda sample: {"tokens": sample["n"]}),
    ):
        with pytest.raises(ValueError, match="a Mixture inside of"):
            loader(other)
