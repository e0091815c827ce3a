"""Qwen2-VL and Qwen2.5-VL: grids of patches, M-RoPE."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .description import DecoderFamily, ImageFamily


def features(model: Any, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
    """Return the features of patches (patches, values) with grids (images, 3)."""
    return torch.cat([*model.get_image_features(pixel_values, image_grid_thw).pooler_output])


def tokens(config: Any) -> Callable[[Any], int]:
    """Return the function that counts the features of a microbatch, by its patches."""
    merged = config.vision_config.spatial_merge_size**2
    return lambda info: info.costs.get("patches", 0) // merged


FAMILIES = dict.fromkeys(
    ("qwen2_vl", "qwen2_5_vl"),
    ImageFamily(
        ("visual",),
        features,
        tokens,
        decoder=DecoderFamily(axes=3),
        inputs=("pixel_values", "image_grid_thw"),
    ),
)
