"""Subset, random_split and ConcatDataset cost what the datasets cost that they are made of."""

import logging
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader
from counterpoise.workers.sources.plain import PlainSource
from tests.loader import balanced_data

made: Any = balanced_data  # its data sets are not torch's


def tokens(source: PlainSource) -> list[int]:
    return [source.probe(index).cost["tokens"] for index in range(len(source))]


def test_a_subset_of_a_concatenation_costs_what_its_samples_cost() -> None:
    both: Any = ConcatDataset([made.Augmented(7), Subset(made.Augmented(9), [8, 2, 5])])
    own = [made.Augmented(9).probe(index).cost["tokens"] for index in range(9)]
    assert tokens(PlainSource(both)) == [*own[:7], own[8], own[2], own[5]]
    some = Subset(both, [9, 0, 7])
    assert tokens(PlainSource(some)) == [own[5], own[0], own[8]]
    assert [PlainSource(some).probe(index).key for index in range(3)] == ["0", "1", "2"]
    half, _ = random_split(made.Augmented(8), [4, 4], torch.Generator().manual_seed(0))
    assert tokens(PlainSource(half)) == [own[index] for index in half.indices]


def test_a_part_without_costs_leaves_all_unknown() -> None:
    mixed: Any = ConcatDataset([made.Augmented(3), [1, 2]])  # type: ignore[list-item]
    assert PlainSource(mixed).probe(0).cost == {"samples": 1}


def warnings_of(caplog: pytest.LogCaptureFixture, dataset: Any, balance: Any, **more: Any) -> Any:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        DataLoader(dataset, 2, shuffle=True, balance=balance, ranks=Ranks(virtual=2), **more)
    return [each.getMessage() for each in caplog.records if "cost" in each.getMessage()]


def test_a_balanced_loader_says_that_no_cost_is_known(caplog: pytest.LogCaptureFixture) -> None:
    unknown: Any = ConcatDataset([[1, 2], [3, 4]])  # type: ignore[list-item]
    (told,) = warnings_of(caplog, unknown, "balanced")
    assert told.startswith("nothing is balanced: what a sample of this ConcatDataset costs")
    assert "DataLoader(cost=...)" in told
    assert not warnings_of(caplog, unknown, "balanced", cost=lambda number: {"n": number})
    assert not warnings_of(caplog, unknown, Balance("fixed"))
    assert not warnings_of(caplog, Subset(made.Augmented(8), range(8)), "balanced")
