"""The grid is InternVL's; the tiles are the resized image, cut."""

from typing import Any

import numpy as np
from hypothesis import given, strategies as st
from PIL import Image

from counterpoise.workers.images.resize import with_pillow, with_torch
from counterpoise.workers.vision_language.tiles import cut, grid, tile_count

SIDES = st.integers(1, 5000)


def _published(width, height, size, most):
    """InternVL's dynamic_preprocess and find_closest_aspect_ratio, read as a specification."""
    ratios = {
        (i, j)
        for n in range(1, most + 1)
        for i in range(1, n + 1)
        for j in range(1, n + 1)
        if i * j <= most
    }
    best, nearest = (1, 1), float("inf")
    for ratio in sorted(ratios, key=lambda r: (r[0] * r[1], r)):
        difference = abs(width / height - ratio[0] / ratio[1])
        if difference < nearest:
            best, nearest = ratio, difference
        elif difference == nearest and width * height > 0.5 * size**2 * ratio[0] * ratio[1]:
            best = ratio
    return best


@given(SIDES, SIDES, st.sampled_from([28, 224, 448]), st.integers(1, 24))
def test_the_grid_is_the_published_one(width, height, size, most):
    assert grid(width, height, size, most) == _published(width, height, size, most)


@given(SIDES, SIDES, st.integers(1, 24))
def test_a_grid_has_at_most_so_many_tiles(width, height, most):
    columns, rows = grid(width, height, 448, most)
    assert 1 <= columns * rows <= most
    assert tile_count((columns, rows)) <= most + 1


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 12), st.booleans())
def test_tiles_put_together_are_the_resized_image(width, height, most, thumbnail):
    size = 8
    levels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(levels)
    columns, rows = shape = grid(width, height, size, most)
    out = np.zeros((tile_count(shape, thumbnail), 3, size, size), np.uint8)
    cut(image, shape, out, with_pillow)
    by_torch = np.zeros_like(out)
    cut(image, shape, by_torch, with_torch)
    assert np.abs(by_torch.astype(int) - out).mean() < 2
    whole = np.zeros((rows * size, columns * size, 3), np.uint8)
    for number, tile in enumerate(out[: rows * columns]):
        row, column = divmod(number, columns)
        place = np.s_[row * size : (row + 1) * size, column * size : (column + 1) * size]
        whole[place] = tile.transpose(1, 2, 0)
    bicubic: dict[str, Any] = {"resample": Image.Resampling.BICUBIC, "reducing_gap": 2.0}
    assert np.array_equal(whole, np.asarray(image.resize((columns * size, rows * size), **bicubic)))
    if len(out) > rows * columns:
        small = np.asarray(image.resize((size, size), **bicubic))
        assert np.array_equal(out[-1].transpose(1, 2, 0), small)


def test_one_tile_has_no_thumbnail():
    assert tile_count((1, 1)) == 1
    assert tile_count((2, 1)) == 3
    assert tile_count((2, 1), thumbnail=False) == 2
