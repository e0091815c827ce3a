"""InternVL 2.5 and 3: tiles, whose patches are shuffled together."""

from typing import Any

from torch import Tensor

from .description import ImageFamily


def features(model: Any, pixel_values: Tensor) -> Tensor:
    """Return the features of tiles (tiles, 3, S, S), one after another."""
    found: Tensor = model.get_image_features(pixel_values).pooler_output.flatten(0, 1)
    return found


def tokens(config: Any) -> dict[str, int]:
    """Return the features of a tile."""
    vision = config.vision_config
    image, patch = (
        size if isinstance(size, int) else size[0]
        for size in (vision.image_size, vision.patch_size)
    )
    return {"tiles": int(image // patch * config.downsample_ratio) ** 2}


FAMILIES = {
    "internvl": ImageFamily(("vision_tower", "multi_modal_projector"), features, tokens),
}
