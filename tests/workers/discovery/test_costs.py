"""Costs are found in every kind of samples as found-costs.md has them, and measured in others."""

import json
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.workers.discovery import FoundCosts, find_costs
from tests.docs.pages import page_named
from tests.workers.discovery.kinds import KINDS, samples_of

_ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.M)


def _documented() -> dict[str, str]:
    rows = dict(_ROW.findall(page_named("found-costs").read_text()))
    return {kind: costs.replace("`", "") for kind, costs in rows.items() if kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_sample_has_the_costs_that_are_documented(kind: str) -> None:
    assert find_costs(samples_of(kind)).describe() == _documented()[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_costs_are_plain_numbers_that_vary_and_survive_json(kind: str) -> None:
    samples = samples_of(kind)
    found = find_costs(samples)
    read = FoundCosts.from_dict(json.loads(json.dumps(found.to_dict())))
    assert read == found
    costs = [read.measure(sample) for sample in samples]
    assert all(tuple(cost) == found.resources for cost in costs)
    assert all(type(value) is int and value >= 0 for cost in costs for value in cost.values())
    assert all(len({cost[name] for cost in costs}) > 1 for name in found.work)


def test_sizes_are_elements_characters_bytes_pixels_and_tiles() -> None:
    sizes = {
        "a CHW image and its class": lambda s: s[0].size,
        "a Pillow image in a dict": lambda s: s["image"].width * s["image"].height,
        "a text": len,
        "encoded images, as webdataset has them": lambda s: len(s["jpg"]),
        "ragged lists of boxes": lambda s: 4 * len(s["boxes"]),
        "messages of a role and a content": lambda s: sum(len(m["content"]) for m in s["messages"]),
        "words": lambda s: 3 * len(s["words"]),
    }
    for kind, size in sizes.items():
        samples = samples_of(kind)
        (name,) = find_costs(samples).work
        assert [find_costs(samples).measure(s)[name] for s in samples] == list(map(size, samples))
    tiled = samples_of("tiles, their numbers and token ids")
    assert [find_costs(tiled).measure(s)["tiles"] for s in tiled] == [
        len(s["pixel_values"]) for s in tiled
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", ["x", "pixel_values"])
@pytest.mark.parametrize("layout", ["strided", "jagged", "sparse_coo"])
@pytest.mark.parametrize("shape", [(2,), (3, 8, 8)])
def test_elements_of_nested_and_sparse_tensors_count(
    name: str, layout: str, shape: tuple[int, ...]
) -> None:
    def made(rows: int) -> torch.Tensor:
        if layout == "sparse_coo":
            return torch.ones(rows, *shape).to_sparse()
        parts = [torch.ones(rows, *shape), torch.ones(1, *shape)]
        return torch.nested.nested_tensor(parts, layout=getattr(torch, layout))

    found = find_costs([{name: made(rows)} for rows in (1, 2, 5)])
    (size,) = found.measure({name: made(4)}).values()
    rows = 4 if layout == "sparse_coo" else 5
    are_tiles = (name, shape, layout) == ("pixel_values", (3, 8, 8), "sparse_coo")
    assert size == (rows if are_tiles else rows * math.prod(shape))


def test_label_tokens_are_counted_as_workers_count_them() -> None:
    samples = [{"labels": [-100] * k + [5] * 7, "input_ids": [1] * (k + 7)} for k in range(1, 5)]
    found = find_costs(samples)
    assert found.resources == ("tokens", "label_tokens")
    assert [found.measure(sample)["label_tokens"] for sample in samples] == [7, 7, 7, 7]
    assert found.measure({"input_ids": [1, 2]}) == {"tokens": 2, "label_tokens": 0}


@pytest.mark.parametrize("wrong", [{}, {"text": None}, {"text": 5}, {"text": ["ab"]}, ["text"]])
def test_a_later_sample_without_the_field_is_named(wrong: Any) -> None:
    found = find_costs([{"text": "x" * k} for k in (70, 80)])
    with pytest.raises(ValueError, match=r"the field 'text' is missing, or is no text.*cost="):
        found.measure(wrong)


def test_what_some_of_the_first_samples_lack_costs_nothing_where_it_is_missing() -> None:
    found = find_costs(samples_of("images in some samples only"))
    assert found.measure({"input_ids": [1], "image": None}) == {"tokens": 1, "image": 0}
    assert found.measure({"input_ids": [1, 2]})["image"] == 0


def test_fields_vary_together_where_they_are_proportional_or_differ_by_a_constant() -> None:
    together = [{"a": [0] * k, "b": [0] * (3 * k), "c": [0] * (k + 5)} for k in (1, 2, 7)]
    assert find_costs(together).resources == ("a",)
    assert find_costs(together).found[0].fields == ("a", "b", "c")
    apart = [{"a": [0] * k, "b": [0] * (k * k)} for k in (1, 2, 7)]
    assert find_costs(apart).resources == ("a", "b")


def test_two_fields_of_one_name_stay_apart() -> None:
    samples = [{"a.b": [0] * n, "a": {"b": [0] * m}} for n, m in ((1, 9), (5, 2), (7, 7))]
    found = find_costs(samples)
    assert found.resources == ("a.b", "a.b #2")
    assert found.measure(samples[0]) == {"a.b": 1, "a.b #2": 9}


def test_of_many_fields_the_largest_stay() -> None:
    drawn = np.random.default_rng(5).integers(1, 50, (30, 12)) * (np.arange(12) + 1)
    samples = [{f"f{k}": [0] * int(n) for k, n in enumerate(row)} for row in drawn]
    largest = sorted(range(12), key=lambda k: int(drawn[:, k].sum()))[-8:]
    assert find_costs(samples).resources == tuple(f"f{k}" for k in sorted(largest))


def test_only_256_samples_are_looked_at() -> None:
    class Lazy(list[str]):
        def __getitem__(self, index: Any) -> Any:
            assert 0 <= index < 256
            return "x" * (100 + index)

    assert find_costs(Lazy(["", ""] * 500)).resources == ("text",)


def test_samples_of_two_forms_are_refused_with_the_ordinal() -> None:
    with pytest.raises(ValueError, match=r"sample 2 of the epoch's order is a dict.*a str.*cost="):
        find_costs(["a", "b", {"text": "c"}])
    with pytest.raises(ValueError, match="empty"):
        find_costs([])


def test_one_sample_and_equal_samples_cost_nothing_that_varies() -> None:
    assert find_costs([{"input_ids": [1, 2]}]).work == ()
    assert find_costs([7, 8]).work == ()
    assert find_costs([None, None]).work == ()


def test_a_list_that_holds_itself_is_looked_into_only_so_far() -> None:
    deep: list[Any] = ["x" * 70]
    deep.append(deep)
    assert isinstance(find_costs([{"a": deep, "b": "x" * k} for k in (70, 90)]), FoundCosts)


def _damaged(given: Any) -> Any:
    changes: list[dict[str, Any]] = [{"name": 5}, {"multiple": 0}, {"limit": 0}, {"fields": [5]}]
    for change in changes:
        yield {**given, "found": [{**given["found"][0], **change}]}
    of_field: list[dict[str, Any]] = [{"kind": "x"}, {"path": [1.5]}, {"optional": 1}]
    for change in of_field:
        field = {**given["found"][0]["field"], **change}
        yield {**given, "found": [{**given["found"][0], "field": field}]}
    yield from ({}, [], None, {**given, "label_tokens": 1}, {"found": 5, "label_tokens": True})


def test_what_a_ledger_holds_is_checked() -> None:
    given = find_costs(samples_of("a text")).to_dict()
    for damaged in _damaged(given):
        with pytest.raises(ValueError, match="found costs"):
            FoundCosts.from_dict(damaged)


def test_finding_costs_imports_neither_torch_nor_pillow_nor_datasets() -> None:
    code = (
        "import sys, counterpoise.workers.discovery as d; d.find_costs(['x' * 70, 'x' * 99]);"
        "sys.exit(len({'torch', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
