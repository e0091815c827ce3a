"""Taking a batch apart is the way back from collating it."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.planning.problem.layout import BUILT_IN
from counterpoise.loader.collate.apart import samples_of
from counterpoise.workers.collate.layouts import collate_samples


@st.composite
def samples(draw: st.DrawFn) -> list[dict[str, Any]]:
    pictures = draw(st.booleans())
    made = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 6))
        sample: dict[str, Any] = {
            "input_ids": np.arange(length) + number,
            "labels": np.where(np.arange(length) % 3 == 2, -100, np.arange(length)),
            "name": f"sample {number}",
            "weight": number / 2,
            "boxes": np.full((draw(st.integers(0, 3)), 4), number),
        }
        if pictures:
            owned = draw(st.lists(st.integers(1, 2), max_size=2))
            sample["tiles_per_image"] = np.array(owned, np.int32)
            shape = sum(owned), 3, 2, 2
            sample["pixel_values"] = np.full(shape, number, np.uint8)
        made.append(sample)
    return made


@pytest.mark.parametrize("layout", BUILT_IN)
@pytest.mark.parametrize("dummy_tile", [0, 2])
@given(given_=samples())
def test_samples_come_back_and_make_the_same_batch_again(
    layout: Any, dummy_tile: int, given_: list[dict[str, Any]]
) -> None:
    collate = partial(collate_samples, layout=layout)
    batch = collate(given_, dummy_tile=dummy_tile)
    apart = samples_of(batch)
    for sample, original in zip(apart, given_, strict=True):
        assert np.array_equal(sample["input_ids"], original["input_ids"])
        assert np.array_equal(sample["labels"][1:], original["labels"][1:])
        assert np.array_equal(sample["boxes"], original["boxes"])
        assert (sample["name"], sample["weight"]) == (original["name"], original["weight"])
        assert len(sample.get("pixel_values", ())) == len(original.get("pixel_values", ()))
    again = collate(apart, dummy_tile=dummy_tile)
    assert again.keys() == batch.keys()
    for name, value in batch.items():
        same = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
        assert same(again[name], value), name


def test_another_batch_is_refused_with_its_fields() -> None:
    with pytest.raises(ValueError, match="this one has pixels, labels: give Balance\\(layout="):
        samples_of({"pixels": 1, "labels": 2})
