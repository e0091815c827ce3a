"""The models of images and text that are known, by their config's model_type.

A tile's pixels are (3, S, S); patches of Qwen-VL have grids (images, 3).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .description import DecoderFamily, ImageFamily
from .towers import cut_tower


def _features(model: Any, *fields: Tensor) -> Tensor:
    """Return the features of all tiles or images, one after another."""
    return torch.cat([*model.get_image_features(*fields).pooler_output])


def _llava_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile; the class token is left out by the default strategy."""
    vision = config.vision_config
    whole = config.vision_feature_select_strategy != "default"
    return {"tiles": (vision.image_size // vision.patch_size) ** 2 + whole}


def _internvl_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile, whose patches are shuffled together."""
    vision = config.vision_config
    image, patch = (
        size if isinstance(size, int) else size[0]
        for size in (vision.image_size, vision.patch_size)
    )
    return {"tiles": int(image // patch * config.downsample_ratio) ** 2}


def _smolvlm_features(model: Any, pixel_values: Tensor, pixel_attention_mask: Tensor) -> Tensor:
    """Return the features of tiles with masks (tiles, S, S); one of zeros alone is padding."""
    # forward's tiles are those of each row of a batch; a packed one has one row
    pixels = pixel_values.view(1, -1, *pixel_values.shape[-3:])
    masks = pixel_attention_mask.view(1, -1, *pixel_attention_mask.shape[-2:])
    return _features(model, pixels, masks)


def _smolvlm_tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile."""
    side = config.vision_config.image_size // config.vision_config.patch_size
    return {"tiles": side**2 // config.scale_factor**2}


def _qwen_tokens(config: Any) -> Callable[[Any], int]:
    """Return the function that counts the features of a microbatch, by its patches."""
    merged = config.vision_config.spatial_merge_size**2
    return lambda info: info.costs.get("patches", 0) // merged


def _stacked_features(model: Any, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
    """Return each token's feature, and beside it those that are added after layers."""
    output = model.get_image_features(pixel_values, image_grid_thw)
    features = (output.pooler_output, *output.deepstack_features)
    return torch.cat([torch.cat([*images]) for images in features], dim=-1)


_QWEN = ImageFamily(
    ("visual",),
    _features,
    _qwen_tokens,
    decoder=DecoderFamily(axes=3),
    inputs=("pixel_values", "image_grid_thw"),
    layered=cut_tower,
)
IMAGE_MODELS = {
    "llava": ImageFamily(("vision_tower", "multi_modal_projector"), _features, _llava_tokens),
    "internvl": ImageFamily(("vision_tower", "multi_modal_projector"), _features, _internvl_tokens),
    "smolvlm": ImageFamily(
        ("vision_model", "connector"),
        _smolvlm_features,
        _smolvlm_tokens,
        language="text_model",
        inputs=("pixel_values", "pixel_attention_mask"),
    ),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": replace(
        _QWEN,
        features=_stacked_features,
        stacked=lambda config: len(config.vision_config.deepstack_visual_indexes),
    ),
}
