"""Collates what images and videos are to an encoder: tiles, patches with their grid, or images.

    pixel_values         with            belongs to
    (tiles, 3, S, S)     tiles_per_image integer (images,): image k has the next of them
    (patches, dim)       image_grid_thw  integer (images, 3): image k has the next t x h x w
    (images, ..)         neither         each is an image; its axes are filled up with 0 to the
                                         largest where a field beside it says what is real (SIZES),
                                         and may be (patches, dim) only there

pixel_values_videos are patches with video_grid_thw, or (videos, frames, 3, H, W). Samples may lack
all of these. A batch has them concatenated, and images_per_sample, videos_per_sample int32 (B,).
"""

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from .fields import Array, Batch, Sample, Samples, concatenated, filled_tensor, read_array
from .stacked import EVERY

GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
COUNTS = {"pixel_values": "images_per_sample", "pixel_values_videos": "videos_per_sample"}
TILES = "tiles_per_image"
IMAGE_FIELDS = frozenset({*GRIDS, *GRIDS.values(), TILES})
# Of an image's pixels these say which are its own.
SIZES = (
    "image_sizes", "pixel_attention_mask", "pixel_mask", "aspect_ratio_ids", "spatial_shapes",
    "image_position_ids",
)  # fmt: skip


def collate_images(samples: Samples, dummy_tile: int, fields: Container[str] = EVERY) -> Batch:
    """Return all images and videos in one array each, and their owners; empty for data without.

    fields: the names of what is wanted of it; nothing else is copied. Raises ValueError where
    numbers of tiles or patches do not fit, and for pixels that can be either.
    """
    batch: Batch = {}
    for name, grid in GRIDS.items():
        pixels = {p: read_array(s[name], p, name) for p, s in enumerate(samples) if name in s}
        for place, array in pixels.items():
            if not array.ndim:
                raise ValueError(f"sample {place} has {name} of shape (); use an array of tiles")
        held = {place: array for place, array in pixels.items() if len(array)}
        is_tiled, owner, fill = name == "pixel_values", "", None
        owned: list[Any]
        if any(grid in sample for sample in samples):
            owner = grid
            owned = [_grid(place, sample, name) for place, sample in enumerate(samples)]
            held = held or dict([*pixels.items()][:1])
        elif held and not (is_tiled and any(TILES in sample for sample in samples)):
            fill = _find_fill(samples, name, held)
            owned = [pixels.get(place, ()) for place in range(len(samples))]
        elif is_tiled and (pixels or dummy_tile or not samples):
            owner = TILES
            owned = [_tiles_per_image(place, sample) for place, sample in enumerate(samples)]
            # An encoder under FSDP must run on every rank: a dummy tile gives it something to do.
            if dummy_tile:
                pixels = {0: np.zeros((1, 3, dummy_tile, dummy_tile), np.uint8)}
            shaped = (tiles for tiles in pixels.values() if tiles.ndim > 3)
            held = held or {0: next(shaped, np.zeros((0, 3, 0, 0), np.uint8))}
        else:
            continue
        if name in fields and held:
            batch[name] = concatenated(name, held, fill)
        if owner and owner in fields:
            dtype = np.int32 if owner == TILES else np.int64
            batch[owner] = filled_tensor(np.concatenate(owned) if owned else [], dtype)
        if COUNTS[name] in fields:
            batch[COUNTS[name]] = filled_tensor([*map(len, owned)] or [0], np.int32)
    return batch


def _tiles_per_image(place: int, sample: Sample) -> Array:
    """Return a sample's tiles_per_image; ValueError where they are not as many as its tiles."""
    owned = read_array(sample.get(TILES, ()), place, TILES)
    pixels = read_array(sample.get("pixel_values", ()), place, "pixel_values")
    if owned.ndim != 1 or (owned.size and owned.dtype.kind not in "iu"):
        raise ValueError(
            f"sample {place} has tiles_per_image {owned.dtype} {owned.shape} and pixel_values of "
            f"shape {pixels.shape}; use whole numbers (images,) and an array (tiles, 3, S, S)"
        )
    if len(pixels) != owned.sum() or owned.min(initial=0) < 0:
        raise ValueError(
            f"sample {place} has {len(pixels)} tiles in pixel_values, but its tiles_per_image "
            f"{owned.tolist()} makes {int(owned.sum())}; give one entry per image"
        )
    return owned


def _grid(place: int, sample: Sample, name: str) -> Array:
    """Return a sample's grids (images, 3); ValueError where they make another number of patches."""
    if name == "pixel_values" and TILES in sample:
        raise ValueError(
            f"sample {place} has tiles_per_image, and samples of its microbatch have "
            "image_grid_thw: pixel_values are tiles or patches, give one of the two to all"
        )
    grid = read_array(sample.get(GRIDS[name], np.zeros((0, 3), int)), place, GRIDS[name])
    pixels = read_array(sample.get(name, ()), place, name)
    if grid.shape == (0,):
        grid = grid.reshape(0, 3).astype(int)
    if grid.ndim != 2 or grid.shape[1] != 3 or grid.dtype.kind not in "iu" or (grid < 1).any():
        raise ValueError(
            f"sample {place} has {GRIDS[name]} {grid.dtype} {grid.shape}: use whole numbers from 1 "
            "(images, 3), how many patches each has in time, height and width"
        )
    patches = int(grid.prod(axis=1).sum())
    if len(pixels) != patches:
        raise ValueError(
            f"sample {place} has {len(pixels)} patches in {name}, of shape {pixels.shape}, but its "
            f"{GRIDS[name]} {grid.tolist()} makes {patches}: give a row [t, h, w] for each image, "
            "and t x h x w patches for it"
        )
    return grid


def _find_fill(samples: Samples, name: str, held: Mapping[int, Array]) -> int | None:
    """Return what images are filled up with, None where all are alike; ValueError for others."""
    # of images only: nothing says which frames are a video's own
    has_sizes = name == "pixel_values" and any({*SIZES} & sample.keys() for sample in samples)
    for place, array in held.items():
        if array.ndim not in ((3, 4, 5) if has_sizes else (4, 5)):
            tiles = f"{TILES} (images,) beside tiles (tiles, 3, S, S), "
            raise ValueError(
                f"sample {place} has {name} {array.dtype} of shape {array.shape}, and nothing "
                f"beside them that says what they are: give {GRIDS[name]} (images, 3) beside "
                f"patches (patches, dim), {tiles * (name == 'pixel_values')}or images (images, 3, "
                f"H, W) or (images, tiles, 3, H, W), or a rule of your own: cp.Layout('mine', "
                f"{{{name!r}: 'concatenate, optional'}}, base=...)"
            )
    return 0 if has_sizes else None
