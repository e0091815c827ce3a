"""Costs of samples known by their images' sizes: tiles as the encoder gets them, and tokens."""

from pathlib import Path

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.workers.vision_language.tiles import grid, tile_count

from .costs import CostTable

TOKENS_PER_TILE = 256


def read_image_sizes(path: Path) -> tuple[CostTable, list[str]]:
    """Return tiles and tokens of an npz file of image sizes, and the names of its sources.

    Arrays: img_w and img_h, pixels of every image; img_offset (samples + 1,), where each sample's
    images begin; text_tokens, source (samples,); sources, the names. Tiles of 448 pixels, at most
    12 and a thumbnail, 256 tokens each, as VisionLanguage has them by default.
    """
    with np.load(path, allow_pickle=False) as arrays:
        sizes = np.stack([arrays["img_w"], arrays["img_h"]], axis=1)
        offset = arrays["img_offset"].astype(np.int64)
        text, source = arrays["text_tokens"].astype(np.int64), arrays["source"].astype(np.int64)
        names = [str(name) for name in arrays["sources"]]
    each = _tiles(sizes.astype(np.int64))
    sums = np.concatenate([[0], np.cumsum(each)])
    tiles = sums[offset[1:]] - sums[offset[:-1]]
    costs = np.stack([tiles, text + TOKENS_PER_TILE * tiles], axis=1)
    return CostTable(("tiles", "tokens"), costs, source), names


def _tiles(sizes: Int64) -> Int64:
    """Return the tiles of images of these sizes (n, 2); most sizes occur often."""
    kinds, which = np.unique(sizes, axis=0, return_inverse=True)
    counts = [tile_count(grid(width, height)) for width, height in kinds.tolist()]
    return np.array(counts, dtype=np.int64)[which.ravel()]
