"""Costs of a Hugging Face data set come from its Arrow columns, and are those of its samples."""

import pickle
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counterpoise.workers.discovery import column_costs, find_costs

LENGTHS = np.random.default_rng(0).integers(0, 90, 60).tolist()
TOKENS = {
    "input_ids": [[1] * n for n in LENGTHS],
    "labels": [[-100] * (n // 3) + [5] * (n - n // 3) for n in LENGTHS],
}


@pytest.fixture(scope="module")
def library() -> Any:
    """Return what makes a data set of columns."""
    return pytest.importorskip("datasets").Dataset.from_dict


def _has_costs_of_its_samples(dataset: Any, resources: tuple[str, ...]) -> bool:
    found = find_costs([dataset[k] for k in range(40)])
    costs = column_costs(dataset, found)
    assert costs is not None
    costs = pickle.loads(pickle.dumps(costs))
    assert found.resources == resources
    assert all(costs.cost(k) == found.measure(dataset[k]) for k in range(len(dataset)))
    return True


def test_lengths_of_lists_are_costs(library: Any) -> None:
    assert _has_costs_of_its_samples(library(TOKENS), ("tokens", "label_tokens"))
    only = library({"input_ids": TOKENS["input_ids"]})
    assert _has_costs_of_its_samples(only, ("tokens",))


def test_nested_lists_and_missing_ones_count_what_is_in_them(library: Any) -> None:
    boxes = [None if n % 7 == 0 else [[0.5] * 4] * n for n in LENGTHS]
    assert _has_costs_of_its_samples(library({"boxes": boxes}), ("boxes",))


def test_labels_are_counted_in_their_column_where_nothing_else_varies(library: Any) -> None:
    labels = [[-100] * (n % 9) + [5] * (9 - n % 9) for n in LENGTHS]
    alike = library({"input_ids": [[1] * 9] * len(LENGTHS), "labels": labels})
    assert _has_costs_of_its_samples(alike, ("label_tokens",))


def test_selected_samples_keep_their_costs(library: Any) -> None:
    chosen = np.random.default_rng(1).permutation(60)[:50].tolist()
    assert _has_costs_of_its_samples(library(TOKENS).select(chosen), ("tokens", "label_tokens"))


def test_a_column_of_lengths_is_the_cost_of_tokens(library: Any) -> None:
    dataset = library({"input_ids": TOKENS["input_ids"], "length": [n + 1000 for n in LENGTHS]})
    costs = column_costs(dataset, find_costs([dataset[k] for k in range(40)]))
    assert costs is not None
    assert costs.cost(3) == {"tokens": LENGTHS[3] + 1000}


def test_costs_are_rounded_as_batches_are(library: Any) -> None:
    dataset = library({"input_ids": TOKENS["input_ids"]})
    found = find_costs([dataset[k] for k in range(40)])
    (one,) = found.found
    rounded = replace(found, found=(replace(one, multiple=8, limit=32),))
    costs = column_costs(dataset, rounded)
    assert costs is not None
    assert [costs.cost(k) for k in range(60)] == [rounded.measure(dataset[k]) for k in range(60)]


def test_what_the_columns_do_not_say_is_not_guessed(library: Any) -> None:
    def of(dataset: Any, samples: list[Any]) -> Any:
        return column_costs(dataset, find_costs(samples))

    texts = library({"text": ["x" * (100 + n * n) for n in LENGTHS]})
    assert of(texts, [texts[k] for k in range(40)]) is None
    changed = library(TOKENS).with_transform(lambda batch: batch)
    assert of(changed, [{"input_ids": [1] * n} for n in LENGTHS]) is None
    assert of([1, 2], [{"input_ids": [1] * n} for n in LENGTHS]) is None
    equal = [{"input_ids": [1]}, {"input_ids": [2]}]
    assert of(library({"input_ids": [[1], [2]]}), equal) is None


def test_without_the_library_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    found = find_costs([{"input_ids": [1] * n} for n in LENGTHS])
    assert column_costs(TOKENS, found) is None
    assert "datasets" not in sys.modules
