"""SmolVLM: tiles with masks of their pixels; a tile of zeros alone is padding, and no tile."""

from typing import Any

import torch
from torch import Tensor

from .description import ImageFamily


def features(model: Any, pixel_values: Tensor, pixel_attention_mask: Tensor) -> Tensor:
    """Return the features of tiles (tiles, 3, S, S) with masks (tiles, S, S)."""
    # forward's tiles are those of each row of a batch; a packed one has one row
    pixels = pixel_values.view(1, -1, *pixel_values.shape[-3:])
    masks = pixel_attention_mask.view(1, -1, *pixel_attention_mask.shape[-2:])
    found = model.get_image_features(pixels, masks)
    return torch.cat([*found.pooler_output])


def tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return {"tiles": side**2 // config.scale_factor**2}


FAMILIES = {
    "smolvlm": ImageFamily(
        ("vision_model", "connector"),
        features,
        tokens,
        language="text_model",
        inputs=("pixel_values", "pixel_attention_mask"),
    )
}
