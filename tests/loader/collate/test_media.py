"""What processors return: grids of patches, images, masks, audio, fields with a value a token."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from counterpoise import Layout
from counterpoise.loader import collate_packed, collate_padded, collate_samples
from counterpoise.loader.collate.equivalence import take_apart

BOTH: dict[str, Any] = {"padded": collate_padded, "packed": collate_packed}
both = pytest.mark.parametrize("base", BOTH)
GRIDS: Any = st.lists(st.tuples(*[st.integers(1, 3)] * 3), max_size=2)


def patches(count: int, first: int) -> Any:
    return np.arange(first, first + count * 2, dtype=np.float32).reshape(-1, 2)


@st.composite
def drawn_sample(draw: st.DrawFn, tiled: bool) -> dict[str, Any]:
    """Return a sample of tiles; or as Qwen-VL's processors make it, with M-RoPE positions."""
    n = draw(st.integers(1, 7))
    made: dict[str, Any] = {
        "input_ids": np.arange(n) + 1, "labels": np.arange(n) + 1,
        "mm_token_type_ids": np.arange(n) % 2, "weights": np.linspace(0, 1, n, dtype=np.float32),
        "mrope_position_ids": np.array([np.arange(n), np.arange(n) // 2, np.zeros(n, int)]),
        "name": f"of {n}", "score": n / 2, "boxes": np.full((draw(st.integers(0, 3)), 4), n),
    }  # fmt: skip
    if tiled:
        owned = draw(st.lists(st.integers(1, 2), max_size=2))
        tiles = np.full((sum(owned), 3, 2, 2), n, np.uint8)
        return made | {"tiles_per_image": np.array(owned, np.int32), "pixel_values": tiles}
    for pixels, grid in (
        ("pixel_values", "image_grid_thw"),
        ("pixel_values_videos", "video_grid_thw"),
    ):
        grids = draw(GRIDS)
        if grids or draw(st.booleans()):  # what has no image may lack the fields
            made[grid] = np.array(grids, int).reshape(-1, 3)
            made[pixels] = patches(int(made[grid].prod(1).sum()), draw(st.integers(0, 99)))
    return made


OWN = {"weights": "tokens 0.0"}


@both
@settings(max_examples=50)
@given(
    rows=st.booleans().flatmap(lambda tiled: st.lists(drawn_sample(tiled), min_size=1, max_size=5)),
    dummy_tile=st.sampled_from([0, 2]),
    align=st.sampled_from([1, 4, 16]),
    more=st.none() | st.integers(0, 2),
)
def test_samples_come_back_and_make_the_same_batch_again(
    base: str, rows: list[dict[str, Any]], dummy_tile: int, align: int, more: int | None
) -> None:
    layout = Layout("own", OWN, base)  # type: ignore[arg-type]
    collate = partial(
        collate_samples, layout=replace(layout, pad_id=9), dummy_tile=dummy_tile, align=align
    )
    if more is not None:
        used = collate(rows)["input_ids"].shape[1]
        collate = partial(collate, length=used + more * align)
    batch = collate(rows)
    found = take_apart(batch, layout)
    assert len(found) == len(rows)
    for sample, original in zip(found, rows, strict=True):
        assert np.array_equal(sample["labels"][1:], original["labels"][1:])
        for name in original.keys() - {"labels"}:
            assert np.array_equal(sample[name], original[name]), name
        # what had none has some without images, if others of its batch have any
        assert not any(len(sample[name]) for name in sample.keys() - original.keys())
    again = collate(found)
    assert again.keys() == batch.keys()
    for name, value in batch.items():
        assert np.array_equal(again[name], value), name
    # in a batch the patches are those of the grids, sample after sample
    for pixels, grid, counts in (
        ("pixel_values", "image_grid_thw", "images_per_sample"),
        ("pixel_values_videos", "video_grid_thw", "videos_per_sample"),
    ):
        if grid in batch:
            whole = [row[pixels] for row in rows if pixels in row]
            assert np.array_equal(batch[pixels], np.concatenate(whole))
            assert batch[counts].tolist() == [len(row.get(grid, ())) for row in rows]
            assert batch[grid].prod(1).sum() == len(batch[pixels])


def test_values_of_tokens_are_laid_as_the_tokens_are() -> None:
    rows: list[dict[str, Any]] = [
        {"input_ids": np.arange(n), "token_type_ids": np.ones(n, int),
         "mrope_position_ids": np.stack([np.arange(n), np.full(n, 7)])}
        for n in (3, 2)
    ]  # fmt: skip
    padded, packed = collate_padded(rows), collate_packed(rows, align=4, length=12)
    assert padded["token_type_ids"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert padded["mrope_position_ids"].shape == (2, 2, 3)
    assert packed["token_type_ids"].tolist() == [[1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0]]
    assert packed["mrope_position_ids"].tolist() == [
        [[0, 1, 2, 8, 0, 1, 8, 9, 0, 1, 2, 3]],  # filling counts on, from all axes' largest
        [[7, 7, 7, 8, 7, 7, 8, 9, 0, 1, 2, 3]],
    ]


@both
@pytest.mark.parametrize(
    ("one", "other", "shapes"),
    [
        # LLaVA, Gemma 3: images without tiles; LLaVA-NeXT and Idefics fill up what differs
        ({"pixel_values": (1, 3, 4, 4)}, {"pixel_values": (2, 3, 4, 4)},
         {"pixel_values": (3, 3, 4, 4)}),
        ({"pixel_values": (1, 3, 4, 4)}, {},
         {"pixel_values": (1, 3, 4, 4), "images_per_sample": (2,)}),
        ({"pixel_values": (1, 5, 3, 4, 4), "image_sizes": (1, 2)},
         {"pixel_values": (2, 3, 3, 4, 4), "image_sizes": (2, 2)},
         {"pixel_values": (3, 5, 3, 4, 4), "image_sizes": (3, 2)}),
        ({"pixel_values": (1, 3, 4, 6), "pixel_attention_mask": (1, 4, 6)},
         {"pixel_values": (1, 3, 5, 2), "pixel_attention_mask": (1, 5, 2)},
         {"pixel_values": (2, 3, 5, 6), "pixel_attention_mask": (2, 5, 6)}),
        ({"pixel_values": (1, 2, 3, 4, 4), "aspect_ratio_ids": (1,), "aspect_ratio_mask": (1, 2)},
         {}, {"pixel_values": (1, 2, 3, 4, 4), "aspect_ratio_mask": (1, 2)}),
        ({"pixel_values_videos": (1, 4, 3, 2, 2)}, {"pixel_values_videos": (2, 4, 3, 2, 2)},
         {"pixel_values_videos": (3, 4, 3, 2, 2), "videos_per_sample": (2,)}),
        # Qwen-Audio, Gemma 3n: several audios a sample; Whisper's (mel, frames) is one
        ({"input_features": (2, 8, 5), "feature_attention_mask": (2, 5)},
         {"input_features": (1, 8, 7), "feature_attention_mask": (1, 7)},
         {"input_features": (3, 8, 7), "feature_attention_mask": (3, 7)}),
        ({"input_features": (8, 5)}, {"input_features": (8, 5)}, {"input_features": (2, 8, 5)}),
    ],
)  # fmt: skip
def test_what_processors_return_is_concatenated(
    base: str, one: Any, other: Any, shapes: Any
) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"input_ids": np.arange(2)} | {name: rng.random(shape) for name, shape in fields.items()}
        for fields in (one, other)
    ]
    batch = BOTH[base](rows)
    for name, shape in shapes.items():
        assert tuple(batch[name].shape) == shape
    for name in one:
        assert batch[name].sum().item() == pytest.approx(
            sum(r[name].sum() for r in rows if name in r)
        )
    again = BOTH[base](take_apart(batch))
    assert all(np.array_equal(again[name], batch[name]) for name in batch)


def test_a_batch_of_another_layout_is_not_taken_apart() -> None:
    with pytest.raises(ValueError, match="this one has pixels, labels: give Balance\\(layout="):
        take_apart({"pixels": 1, "labels": 2})


TEXT = {"input_ids": np.arange(2)}


@both
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pixel_values": patches(8, 0)},
         r"shape \(8, 2\), and nothing beside them .*give image_grid_thw .*tiles_per_image.*cp.La"),
        ({"pixel_values": patches(8, 0), "image_grid_thw": [[1, 2, 2]]},
         r"8 patches in pixel_values, of shape \(8, 2\), but its image_grid_thw \[\[1, 2, 2"),
        ({"pixel_values": patches(4, 0), "image_grid_thw": [1, 2, 2]}, r"use whole numbers from 1"),
        ({"image_grid_thw": [[1, 2, 2]]}, "sample 0 has 0 patches"),
        ({"pixel_values_videos": patches(4, 0)}, "and nothing beside them .* give video_grid_thw"),
        ({"pixel_values": patches(4, 0), "image_grid_thw": [[1, 2, 2]], "tiles_per_image": [1]},
         "pixel_values are tiles or patches, give one of the two to all"),
        ({"input_features": np.ones(3)}, r"shape \(3,\): give an array of 3 axes, items first, or"),
        ({"mm_token_type_ids": [1]}, r"shape \(1,\), and its input_ids \(2,\): it goes with the"),
    ],
)  # fmt: skip
def test_media_that_do_not_fit_are_refused_with_what_would(
    base: str, fields: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        BOTH[base]([{**TEXT, **fields}])
    assert "tiles in pixel_values" not in str(caught.value)


@both
def test_images_of_several_sizes_need_a_field_or_a_rule_that_says_so(base: Any) -> None:
    rows = [{**TEXT, "pixel_values": np.ones((1, 3, 4, side))} for side in (4, 6)]
    rule = {"pixel_values": "concatenate, pad 0, optional"}
    with pytest.raises(
        ValueError, match=f"make them all alike, or .*cp.Layout.'mine', .*'{rule['pixel_values']}'"
    ):
        BOTH[base](rows)
    batch = collate_samples(rows, Layout("mine", rule, base))
    assert batch["pixel_values"].shape == (2, 3, 4, 6)
    assert "images_per_sample" not in batch


@both
def test_what_only_a_batch_can_have_is_not_taken_from_samples(base: str) -> None:
    rows = [
        {
            **TEXT,
            "pixel_values": patches(4, 0),
            "image_grid_thw": [[1, 2, 2]],
            "images_per_sample": 1,
        }
    ]
    assert BOTH[base](rows)["images_per_sample"].tolist() == [1]
    with pytest.raises(ValueError, match="sample 0 has videos_per_sample of its own"):
        BOTH[base]([{**rows[0], "videos_per_sample": 1}])
    assert torch.equal(BOTH[base]([])["input_ids"], torch.tensor([[0]]))
