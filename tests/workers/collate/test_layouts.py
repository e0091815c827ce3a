"""Layouts: every token and tile arrives once, labels stay within their sample, one copy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from counterpoise.balancer.planning.problem.layout import BUILT_IN
from counterpoise.balancer.planning.problem.options import NAMES
from counterpoise.workers.arena.worker import Beginning, this_worker
from counterpoise.workers.collate.layouts import collate_packed, collate_padded
from tests.workers.arena.test_queue import in_child

SIDE = 2
COLLATE = {"padded": collate_padded, "packed": collate_packed}
CollateFn = Callable[..., dict[str, Any]]
both = pytest.mark.parametrize("layout", list(COLLATE.values()), ids=list(COLLATE))


def make_sample(length: int, tiles: list[int], first: int = 1) -> dict[str, Any]:
    ids = np.arange(first, first + length, dtype=np.int32)
    pixels = np.arange(sum(tiles) * 3 * SIDE * SIDE) % 251
    return {
        "input_ids": ids,
        "labels": np.where(ids % 3 == 0, -100, ids).astype(np.int32),
        "pixel_values": pixels.astype(np.uint8).reshape(-1, 3, SIDE, SIDE),
        "tiles_per_image": np.array(tiles, dtype=np.int32),
    }


shapes = st.tuples(st.integers(1, 9), st.lists(st.integers(1, 3), max_size=3))
batches = st.lists(shapes, min_size=1, max_size=6).map(
    lambda drawn: [make_sample(n, tiles, 1 + 100 * i) for i, (n, tiles) in enumerate(drawn)]
)


@given(samples=batches)
def test_padded_rows_hold_each_sample_and_filling(samples: list[dict[str, Any]]) -> None:
    batch = collate_padded(samples, pad_id=7)
    assert batch["attention_mask"].sum(1).tolist() == [len(s["input_ids"]) for s in samples]
    for row, sample in enumerate(samples):
        n = len(sample["input_ids"])
        assert batch["input_ids"][row, :n].tolist() == sample["input_ids"].tolist()
        assert batch["labels"][row, 1:n].tolist() == sample["labels"][1:].tolist()
        assert (batch["input_ids"][row, n:] == 7).all()
        assert (batch["labels"][row, n:] == -100).all()


@given(samples=batches)
def test_a_pack_can_be_cut_back_into_its_samples(samples: list[dict[str, Any]]) -> None:
    batch = collate_packed(samples)
    starts = batch["cu_seq_lens"].tolist()
    assert batch["cu_seq_lens"].dtype == torch.int32
    assert batch["max_length"] == max(len(s["input_ids"]) for s in samples)
    for sample, start, stop in zip(samples, starts, starts[1:], strict=False):
        assert batch["input_ids"][0, start:stop].tolist() == sample["input_ids"].tolist()
        assert batch["position_ids"][0, start:stop].tolist() == list(range(stop - start))
        assert batch["labels"][0, start + 1 : stop].tolist() == sample["labels"][1:].tolist()
        assert batch["labels"][0, start] == -100
    assert starts[-1] == batch["input_ids"].shape[1]


@both
@given(samples=batches)
def test_tiles_stay_in_order_and_know_their_owners(
    layout: CollateFn, samples: list[dict[str, Any]]
) -> None:
    batch = layout(samples)
    pixels = np.concatenate([s["pixel_values"] for s in samples])
    assert batch["pixel_values"].dtype == torch.uint8
    assert np.array_equal(batch["pixel_values"].numpy(), pixels)
    assert batch["tiles_per_image"].tolist() == [t for s in samples for t in s["tiles_per_image"]]
    assert batch["images_per_sample"].tolist() == [len(s["tiles_per_image"]) for s in samples]


@both
@pytest.mark.parametrize("dummy_tile", [0, SIDE])
def test_an_empty_microbatch_is_one_pad_token_without_a_label(
    layout: CollateFn, dummy_tile: int
) -> None:
    batch = layout([], pad_id=9, dummy_tile=dummy_tile)
    assert batch["input_ids"].tolist() == [[9]]
    assert batch["labels"].tolist() == [[-100]]
    assert len(batch["pixel_values"]) == bool(dummy_tile)
    assert batch["tiles_per_image"].tolist() == []


@both
def test_a_batch_without_images_gets_a_zero_tile_that_nobody_owns(layout: CollateFn) -> None:
    batch = layout([make_sample(4, []), {"input_ids": np.array([1, 2])}], dummy_tile=SIDE)
    assert batch["pixel_values"].shape == (1, 3, SIDE, SIDE)
    assert not batch["pixel_values"].any()
    assert batch["tiles_per_image"].sum() == 0
    assert batch["images_per_sample"].tolist() == [0, 0]


@both
def test_a_batch_with_images_gets_no_dummy(layout: CollateFn) -> None:
    assert len(layout([make_sample(4, [2])], dummy_tile=SIDE)["pixel_values"]) == 2


@both
def test_data_without_image_fields_stays_without(layout: CollateFn) -> None:
    assert "pixel_values" not in layout([{"input_ids": np.array([1, 2])}])


@both
def test_other_fields_follow_their_kind(layout: CollateFn) -> None:
    text = {"input_ids": np.array([1])}
    batch = layout(
        [
            text | {"score": 0.5, "name": "a", "raw": b"x", "boxes": np.ones((2, 4))},
            text | {"score": 1.5, "name": "b", "raw": b"y", "boxes": np.zeros((1, 4))},
        ]
    )
    assert batch["score"].tolist() == [0.5, 1.5]
    assert batch["name"] == ["a", "b"]
    assert batch["raw"] == [b"x", b"y"]
    assert batch["boxes"].shape == (3, 4)
    assert batch["boxes_lengths"].tolist() == [2, 1]


@both
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"labels": np.array([1])}], "sample 0 has no input_ids"),
        ([{"input_ids": np.array([], dtype=np.int32)}], "use .n,. with n >= 1"),
        ([{"input_ids": np.array([1, 2]), "labels": np.array([1])}], "labels are aligned"),
        ([make_sample(2, [1]) | {"tiles_per_image": np.array([2])}], "one entry per image"),
        ([{"input_ids": np.array([1]), "x": 1}, {"input_ids": np.array([1])}], "'x' is missing"),
        (
            [make_sample(2, [1]), make_sample(2, [1]) | {"pixel_values": np.zeros((1, 3, 4, 4))}],
            "make them all alike",
        ),
    ],
)
def test_samples_that_do_not_fit_are_refused(
    layout: CollateFn, samples: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        layout(samples)


def test_every_layout_but_torchs_has_its_collate_function() -> None:
    assert {"torch", *BUILT_IN} == {"torch", *COLLATE} == set(NAMES["layout"])


@both
@pytest.mark.parametrize("sample", [(torch.arange(3), 1), torch.arange(3), 7])
def test_samples_without_names_are_refused_with_what_to_do(layout: CollateFn, sample: Any) -> None:
    with pytest.raises(TypeError, match=r"sample 0 is a .*dicts with input_ids.*layout='torch'"):
        layout([sample])


@both
def test_a_torch_worker_lays_large_fields_out_where_the_trainer_reads_them(
    layout: CollateFn,
) -> None:
    samples = [make_sample(9, [3_000], first) for first in (1, 100)]
    expected = layout(samples)

    def check() -> bool:
        Beginning(Exception, None)(0)
        worker, batch = this_worker(), layout(samples)
        assert worker is not None
        in_slot = worker.sender.find_slot(batch["pixel_values"].data_ptr()) is not None
        small = worker.sender.find_slot(batch["input_ids"].data_ptr()) is None
        return in_slot and small and torch.equal(batch["pixel_values"], expected["pixel_values"])

    assert in_child(check)
    assert this_worker() is None
