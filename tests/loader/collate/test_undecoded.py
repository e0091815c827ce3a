"""A batch of samples that are not decoded is the one that their layout makes, or None."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.protocol.messages import Handles
from counterpoise.loader.collate.buffers import BufferPool
from counterpoise.loader.collate.fields import EVERY
from counterpoise.loader.collate.layouts import COLLATE_BY_LAYOUT
from counterpoise.loader.collate.undecoded import collate_undecoded
from counterpoise.workers.codec.columns import ColumnReader
from counterpoise.workers.codec.frames import decode_packed
from counterpoise.workers.lending.placed_payloads import PlacedPayloads
from tests.loader.collate.test_layouts import SIDE, make_sample
from tests.loader.collate.test_stacking import assert_same, encoded
from tests.workers.codec.test_columns import side_by_side

both = pytest.mark.parametrize("layout", list(COLLATE_BY_LAYOUT))
GIVEN: dict[str, Any] = {"pad_id": 7, "dummy_tile": 0}


def undecoded(
    layout: Any, headers: Sequence[bytes], payloads: Collection[Any], fields: Any, **given: Any
) -> Any:
    given = {"allocate": BufferPool().take, **GIVEN, **given}
    found = collate_undecoded(layout, ColumnReader(), [(headers, payloads)], fields, **given)
    return None if found is None else found[0]


def decoded(
    layout: Any, headers: Sequence[bytes], payloads: Collection[Any], fields: Any, **given: Any
) -> Any:
    """Return the batch of decoded samples, None if there is none."""
    try:
        samples = [
            decode_packed(header, payload)
            for header, payload in zip(headers, payloads, strict=True)
        ]
        return COLLATE_BY_LAYOUT[layout](samples, fields=fields, **GIVEN | given)
    except (TypeError, ValueError):
        return None


def check(layout: Any, samples: list[Any], fields: Any = EVERY, **given: Any) -> Any:
    """Return the batch of samples that are not decoded, which is that of decoded ones."""
    headers, payloads = encoded(samples)
    expected = decoded(layout, headers, payloads, fields, **given)
    found = undecoded(layout, headers, payloads, fields, **given)
    if found is not None:
        assert_same(found, expected)
    runs, *places = side_by_side(payloads, 2)
    handles = Handles((), *map(tuple, places))
    lent = PlacedPayloads([memoryview(run) for run in runs], handles)
    assert_same(undecoded(layout, headers, lent, fields, **given), found)
    return found


usual = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 3), max_size=3)), min_size=1, max_size=6
).map(lambda drawn: [make_sample(n, tiles, 1 + 100 * i) for i, (n, tiles) in enumerate(drawn)])
NAMES = ["input_ids", "labels", "position_ids", "attention_mask", "cu_seq_lens", "max_length"]
NAMES += ["pixel_values", "tiles_per_image", "images_per_sample", "extra", "extra_lengths"]
chosen = st.just(EVERY) | st.sets(st.sampled_from(NAMES))


@both
@given(samples=usual, fields=chosen, dummy_tile=st.sampled_from([0, SIDE]), left_out=st.sets(
    st.sampled_from(["labels", "pixel_values", "tiles_per_image"])
))  # fmt: skip
def test_usual_samples_are_laid_out_as_decoded_ones(
    layout: str, samples: list[dict[str, Any]], fields: Any, dummy_tile: int, left_out: set[str]
) -> None:
    kept = [{name: s[name] for name in s if name not in left_out} for s in samples]
    kept = [{**s, "extra": np.full((len(s["input_ids"]), 2), 0.5)} for s in kept]
    batch = check(layout, kept, fields, dummy_tile=dummy_tile)
    has_owners = "tiles_per_image" in kept[0] or all(len(s["pixel_values"]) == 0 for s in samples)
    if has_owners == ("pixel_values" in kept[0]):
        assert batch is not None


@both
def test_long_samples_are_laid_out_as_decoded_ones(layout: str) -> None:
    assert check(layout, [make_sample(n, [1], 1) for n in (9_000, 3, 20_000)]) is not None


arrays = st.tuples(
    st.sampled_from(["<i4", "<i8", "<u8", "?", "<f4", "u1"]),
    st.lists(st.integers(0, 3), max_size=3),
).map(lambda drawn: np.full(drawn[1], 1, drawn[0]))
values = arrays | st.sampled_from([np.array([2, 1], np.int32), 3, 0.5, "text", b"bytes", [1], None])


@both
@given(
    samples=usual,
    changes=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([
        "input_ids", "labels", "pixel_values", "tiles_per_image", "extra",
    ]), values), min_size=1, max_size=3),
    fields=chosen,
    dummy_tile=st.sampled_from([0, SIDE]),
    all_of_them=st.booleans(),
)  # fmt: skip
def test_unusual_samples_are_laid_out_as_decoded_ones_or_not_at_all(
    layout: str,
    samples: list[dict[str, Any]],
    changes: list[tuple[int, str, Any]],
    fields: Any,
    dummy_tile: int,
    all_of_them: bool,
) -> None:
    for place, name, value in changes:
        for sample in samples if all_of_them else [samples[place % len(samples)]]:
            sample[name] = value
    check(layout, samples, fields, dummy_tile=dummy_tile)


@both
@pytest.mark.parametrize(
    "samples",
    [
        [],
        [7],
        [{"labels": np.array([1])}],
        [{"input_ids": np.array([], np.int32)}],
        [{"input_ids": np.array([[1]])}],
        [{"input_ids": np.array([1, 2]), "labels": np.array([1])}],
        [{"input_ids": np.array([1]), "labels": np.array(1)}],
        [make_sample(2, [1]) | {"tiles_per_image": np.array([2])}],
        [make_sample(2, [1]) | {"tiles_per_image": np.array([1.0])}],
        [make_sample(2, [1]) | {"pixel_values": np.array(1, np.uint8)}],
        [make_sample(2, [1]), make_sample(2, [1]) | {"pixel_values": np.zeros((1, 3, 4, 4))}],
        [make_sample(2, [1]), {"input_ids": np.array([1], np.int32)}],
        [{"input_ids": np.array([1]), "x": np.array(1)}],
        [{"input_ids": np.array([1]), "x": 1}],
        [{"input_ids": np.array([1]), "x": np.ones((1, n))} for n in (1, 2)],
    ],
)
def test_all_else_has_to_be_decoded(layout: str, samples: list[Any]) -> None:
    headers, payloads = encoded(samples)
    assert undecoded(layout, headers, payloads, EVERY) is None


@both
def test_samples_without_tiles_may_have_any_size_of_tiles(layout: str) -> None:
    empty = make_sample(2, []) | {"pixel_values": np.zeros((0, 3, 9, 9), np.uint8)}
    batch = check(layout, [empty, make_sample(3, [2])])
    assert batch["pixel_values"].shape == (2, 3, SIDE, SIDE)
    assert check(layout, [empty])["pixel_values"].shape == (0, 3, 9, 9)


@both
def test_every_array_is_written_into_the_callers_buffers(layout: str) -> None:
    given_out: list[np.ndarray[Any, Any]] = []

    def allocate(nbytes: int) -> memoryview:
        given_out.append(np.zeros(nbytes + 64, np.uint8))
        return memoryview(given_out[-1])  # type: ignore[arg-type]

    headers, payloads = encoded([make_sample(3, [1]), make_sample(5, [2, 1])])
    batch = undecoded(layout, headers, payloads, EVERY, allocate=allocate)
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    assert {tensor.data_ptr() for tensor in tensors} == {each.ctypes.data for each in given_out}
    assert len(given_out) == len(tensors)


@both
def test_payloads_that_do_not_fit_are_left_to_who_says_why(layout: str) -> None:
    headers, payloads = encoded([make_sample(3, [1])])
    assert undecoded(layout, headers, [payloads[0][:-1]], EVERY) is None
