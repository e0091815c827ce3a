"""Fields of samples that are named as those that a layout makes, and fields that it knows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.loader import collate_packed, collate_padded

COLLATE: dict[str, Callable[..., dict[str, Any]]] = {
    "packed": collate_packed,
    "padded": collate_padded,
}


def tokenized(count: int, **changes: Any) -> dict[str, Any]:
    """Return a sample as a tokenizer makes it."""
    own = {
        "attention_mask": np.ones(count, int), "position_ids": list(range(count)),
        "cu_seq_lens": torch.tensor([0, count]), "max_length": 512, "images_per_sample": 0,
    }  # fmt: skip
    return {"input_ids": list(range(1, count + 1)), **own, **changes}


@pytest.mark.parametrize("layout", COLLATE)
def test_a_tokenizers_own_fields_change_nothing_of_the_batch(layout: str) -> None:
    rows = [tokenized(3), tokenized(2)]
    found = COLLATE[layout](rows)
    expected = COLLATE[layout]([{"input_ids": row["input_ids"]} for row in rows])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value)


@pytest.mark.parametrize("layout", COLLATE)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_mask", [1, 1, 0]), ("attention_mask", [[1, 1, 1]]), ("position_ids", [0, 1, 0]),
        ("position_ids", np.zeros((3, 3), int)), ("cu_seq_lens", [0, 2, 3]),
        ("images_per_sample", 2),
    ],
)  # fmt: skip
def test_one_that_says_otherwise_is_refused(layout: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"sample 1 has {name} of its own.*another name"):
        COLLATE[layout]([tokenized(2), tokenized(3, **{name: value})])


@pytest.mark.parametrize("layout", COLLATE)
def test_a_name_that_lengths_have_is_refused(layout: str) -> None:
    row = {"input_ids": [1], "boxes": np.ones(2), "boxes_lengths": 2}
    with pytest.raises(ValueError, match=r"'boxes_lengths', which is the name of the lengths of"):
        COLLATE[layout]([row])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [1.0, 2.5]}, "input_ids of float64; use whole numbers"),
        ({"input_ids": [1, None]}, "'input_ids' of sample 0 is a list of object"),
        ({"labels": [1.0, 2.0]}, "labels float64 of shape"),
        ({"labels": 1}, r"labels int64 of shape \(\); labels are aligned with input_ids"),
        ({"labels": None}, "'labels' of sample 0 is a NoneType"),
        ({"pixel_values": None}, "'pixel_values' of sample 0 is a NoneType"),
        ({"pixel_values": 3, "tiles_per_image": [1]}, r"pixel_values of shape \(\)"),
        ({"pixel_values": np.ones((1, 3, 2, 2)), "tiles_per_image": [1.0]}, "use whole numbers"),
        ({"pixel_values": np.ones((1, 3, 2, 2)), "tiles_per_image": [-1, 2]}, r"its \w+ \[-1, 2\]"),
    ],
)
@pytest.mark.parametrize("layout", COLLATE)
def test_known_fields_are_of_their_type(layout: str, changes: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        COLLATE[layout]([{"input_ids": [1, 2], **changes}])
