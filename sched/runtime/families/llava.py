"""LLaVA 1.5: one tile an image, a feature for each patch."""

from typing import Any

import torch
from torch import Tensor

from .description import ImageFamily


def features(model: Any, pixel_values: Tensor) -> Tensor:
    """Return the features of tiles (tiles, 3, S, S), one after another."""
    return torch.cat([*model.get_image_features(pixel_values).pooler_output])


def tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile; the class token is left out by the default strategy."""
    vision = config.vision_config
    whole = config.vision_feature_select_strategy != "default"
    return {"tiles": (vision.image_size // vision.patch_size) ** 2 + whole}


FAMILIES = {
    "llava": ImageFamily(("vision_tower", "multi_modal_projector"), features, tokens),
}
