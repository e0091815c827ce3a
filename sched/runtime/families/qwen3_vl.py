"""Qwen3-VL: as Qwen2-VL, with features of inner layers for the first layers of the decoder."""

from typing import Any

import torch
from torch import Tensor

from .description import DecoderFamily, ImageFamily
from .qwen_vl import tokens


def features(model: Any, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
    """Return each token's feature, and beside it those that are added after layers."""
    found = model.get_image_features(pixel_values, image_grid_thw)
    every = (found.pooler_output, *found.deepstack_features)
    return torch.cat([torch.cat([*images]) for images in every], dim=-1)


FAMILIES = {
    "qwen3_vl": ImageFamily(
        ("visual",),
        features,
        tokens,
        decoder=DecoderFamily(axes=3),
        inputs=("pixel_values", "image_grid_thw"),
        stacked=lambda config: len(config.vision_config.deepstack_visual_indexes),
    )
}
