"""What a Hugging Face model is told about a packed batch; tests/frameworks asks the real ones."""

import numpy as np
import pytest

from counterpoise.loader import collate_packed, collate_padded, hf_kwargs

SAMPLES = [
    {"input_ids": np.arange(n), "labels": np.arange(n), "name": f"sample {n}"} for n in (3, 1, 5)
]


def test_a_packed_batch_says_where_its_samples_are() -> None:
    batch = collate_packed(SAMPLES)
    told = hf_kwargs(batch)
    assert told.pop("use_cache") is False
    assert told["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 2, 3, 4]]
    assert told["cu_seq_lens_q"].tolist() == told["cu_seq_lens_k"].tolist() == [0, 3, 4, 9]
    assert told["max_length_q"] == told["max_length_k"] == 5
    # what the batch itself gives a model is not given twice
    assert not set(told) & {"input_ids", "labels", "attention_mask"}


def test_a_batch_that_is_not_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="no position_ids, cu_seq_lens, max_length, only input_id"):
        hf_kwargs(collate_padded(SAMPLES))
