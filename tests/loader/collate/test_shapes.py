"""Batches filled up to shapes: each sample to a multiple, the microbatch to a length."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import scaled_dot_product_attention as attention

from counterpoise.loader import collate_packed, collate_padded
from counterpoise.loader.collate.equivalence import take_apart

LENGTHS = st.lists(st.integers(1, 40), max_size=6)
ALIGN = st.sampled_from([1, 2, 8, 16, 24])


def texts(lengths: list[int]) -> list[dict[str, Any]]:
    made = [np.arange(n) + 1 + 100 * place for place, n in enumerate(lengths)]
    return [{"input_ids": ids, "labels": np.where(ids % 3, ids, -100)} for ids in made]


def aligned(length: int, align: int) -> int:
    return -(-length // align) * align


def label_tokens(batch: Any) -> int:
    return int((batch["labels"] != -100).sum())


@settings(max_examples=100)
@given(lengths=LENGTHS, align=ALIGN, more=st.none() | st.integers(0, 3))
def test_packed_samples_begin_at_multiples_and_kernels_see_every_token_once(
    lengths: list[int], align: int, more: int | None
) -> None:
    rows, real = texts(lengths), lengths or [1]
    filled = [aligned(length, align) for length in real]
    total = sum(filled) + (more or 0) * align
    batch = collate_packed(rows, pad_id=7, align=align, length=None if more is None else total)
    assert batch["input_ids"].shape == batch["position_ids"].shape == (1, total)
    borders = batch["cu_seq_lens_padded" if align > 1 else "cu_seq_lens"]
    assert borders.dtype == batch["cu_seq_lens"].dtype == torch.int32
    added = [more * align] if more else []
    assert borders.diff().tolist() == [*filled, *added]
    assert batch["cu_seq_lens"].diff().tolist() == [*real, *added]
    # no token is outside a sequence: kernels leave there what was in memory
    assert (borders[0], borders[-1]) == (0, total)
    assert batch["max_length"] == (borders.diff().max() if more is None else total)
    assert not (borders % align).any()
    assert batch.get("pad_sequences") == (None if more is None else int(more > 0))
    for begin, end in pairwise(borders.tolist()):
        assert batch["position_ids"][0, begin:end].tolist() == [*range(end - begin)]
    plain = collate_packed(rows)
    assert label_tokens(batch) == label_tokens(plain)
    for row, begin in zip(rows, borders.tolist(), strict=False):
        end = begin + len(row["input_ids"])
        assert batch["input_ids"][0, begin:end].tolist() == row["input_ids"].tolist()
    filling = total - sum(map(len, (row["input_ids"] for row in rows)))
    assert (
        int((batch["input_ids"] == 7).sum()) - sum(int(7 in r["input_ids"]) for r in rows)
        == filling
    )
    if rows:
        assert [each["input_ids"].tolist() for each in take_apart(batch)] == [
            row["input_ids"].tolist() for row in rows
        ]


@settings(max_examples=100)
@given(lengths=LENGTHS, align=ALIGN, more=st.none() | st.integers(0, 3))
def test_padded_rows_have_the_width_that_is_asked_for(
    lengths: list[int], align: int, more: int | None
) -> None:
    rows, real = texts(lengths), lengths or [1]
    width = aligned(max(real), align) + (more or 0) * align
    batch = collate_padded(rows, pad_id=7, align=align, length=None if more is None else width)
    for name in ("input_ids", "labels", "attention_mask"):
        assert batch[name].shape == (len(real), width)
    assert batch["attention_mask"].sum(1).tolist() == real
    assert batch.get("pad_sequences") == (None if more is None else 0)
    assert label_tokens(batch) == label_tokens(collate_padded(rows))
    if rows:
        assert [each["labels"][1:].tolist() for each in take_apart(batch)] == [
            row["labels"][1:].tolist() for row in rows
        ]


def heads(count: int) -> torch.Tensor:
    return torch.randn(3, 1, 2, count, 4, generator=torch.Generator().manual_seed(count)).double()


@pytest.mark.parametrize("length", [None, 64])
def test_attention_by_document_ids_is_that_of_each_sample_alone(length: int | None) -> None:
    batch = collate_packed(texts([5, 11, 1, 8]), align=8, length=length)
    real, begins = batch["cu_seq_lens"].diff(), batch["cu_seq_lens_padded"]
    total = batch["input_ids"].shape[1]
    # FlexAttention's document ids, as docs/guides/packed.md makes them
    ids = torch.bucketize(torch.arange(total), begins[1:], right=True)
    seen = (ids[:, None] == ids[None, :]) & torch.ones(total, total, dtype=torch.bool).tril()
    q, k, v = heads(total)
    packed = attention(q, k, v, attn_mask=seen)
    assert packed.isfinite().all()
    for begin, count in zip(begins.tolist(), real.tolist(), strict=False):
        part = slice(begin, begin + count)
        alone = attention(q[:, :, part], k[:, :, part], v[:, :, part], is_causal=True)
        torch.testing.assert_close(packed[:, :, part], alone)
    assert ids.max() + 1 == len(begins) - 1


def test_positions_say_the_same_borders_as_cumulative_lengths() -> None:
    batch = collate_packed(texts([5, 11, 1]), align=4, length=40)
    (restarts,) = (batch["position_ids"][0] == 0).nonzero(as_tuple=True)
    assert restarts.tolist() == batch["cu_seq_lens_padded"][:-1].tolist() == [0, 8, 20, 24]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"length": 8},
            "a microbatch is to have 8 tokens, and its (longest sample has|samples have)",
        ),
        ({"align": 16, "length": 40}, "length is 40 and align 16: give a multiple of it"),
        ({"align": 0}, "align 0: give a multiple of it, at least 1"),
    ],
)
@pytest.mark.parametrize("collate", [collate_packed, collate_padded])
def test_what_does_not_fit_is_refused(collate: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate(texts([9, 4]), **given)
