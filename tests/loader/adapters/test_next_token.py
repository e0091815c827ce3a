"""Batches for frameworks that want a label at the token before: fields keep out of each other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from counterpoise.loader import collate_packed
from counterpoise.loader.adapters.megatron import megatron_batch
from counterpoise.loader.adapters.next_token import next_token_batch


@pytest.mark.parametrize(
    ("convert", "name"),
    [
        (next_token_batch, "input"), (next_token_batch, "positions"), (megatron_batch, "loss_mask"),
        (megatron_batch, "tokens"), (megatron_batch, "cu_seqlens"),
    ],
)  # fmt: skip
def test_a_samples_field_takes_the_place_of_none_that_is_made(
    convert: Callable[[Any], Any], name: str
) -> None:
    sample = {"input_ids": np.arange(3), "labels": np.arange(3)}
    batch = collate_packed([{**sample, name: np.ones(3)}])
    with pytest.raises(ValueError, match=f"have a field '{name}', .* another name"):
        convert(batch)
    convert(collate_packed([{**sample, "score": 0.5}]))
