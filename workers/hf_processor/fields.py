"""Fields of a sample from what a processor returns: arrays without a batch axis.

Fields of tokens are (n,). Of images all tiles of a sample stand one after another, whatever the
processor made of it: Idefics' have a batch axis, LLaVA-NeXT's images are padded to the tiles of the
largest. A sample without images has the fields of images too, of no rows, so that batches of both
kinds have the same fields.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .sizes import Size, pinpoint_tiles

Fields = dict[str, Any]
PER_TOKEN = ("input_ids", "labels", "token_type_ids", "mm_token_type_ids")
_NESTED = ("Idefics2", "Idefics3", "SmolVLM")
_PADDED = ("LlavaNext", "LlavaOnevision")


def token_fields(made: Mapping[str, Any]) -> Fields:
    """Return what a processor returns of one text, fields of tokens as int64 (n,)."""
    return {
        name: np.asarray(value[0], np.int64) if name in PER_TOKEN else value
        for name, value in made.items()
        if name != "attention_mask"  # of one sample all is attended to
    }


def sample_fields(made: Fields, processor: Any, images: int, blank: Fields) -> Fields:
    """Return a sample's fields; blank: those of images where there are none."""
    tokens = {name: value for name, value in made.items() if name in PER_TOKEN}
    if not images:
        return {**tokens, **blank}
    return {**tokens, **_image_fields(made, processor.image_processor)}


def blank_fields(processor: Any, mark: str, given: Mapping[str, Any]) -> Fields:
    """Return the fields of no image: those of a blank one, cut to no rows."""
    from PIL import Image

    blank = Image.new("RGB", (64, 64))
    made = processor(text=[mark], images=[[blank]], **{**given, "return_tensors": None})
    found = _image_fields(made, processor.image_processor)
    return {name: value[:0] if value.ndim else np.zeros_like(value) for name, value in found.items()}


def _image_fields(made: Mapping[str, Any], image_processor: Any) -> Fields:
    kind = type(image_processor).__name__
    skipped = (*PER_TOKEN, "attention_mask")
    found = {name: value for name, value in made.items() if name not in skipped}
    if kind.startswith(_NESTED):
        found = {name: value[0] for name, value in found.items()}
    if kind.startswith(_PADDED):
        found["pixel_values"] = _unpadded(found, image_processor)
    if "batch_num_images" in found:
        found["batch_num_images"] = found["batch_num_images"][0]
    return {name: _array(value) for name, value in found.items()}


def _unpadded(found: Mapping[str, Any], image_processor: Any) -> Any:
    """Return the tiles of all images, without those that fill images up to the largest."""
    pixels, sizes = found["pixel_values"], found["image_sizes"]
    if "batch_num_images" in found and len(sizes) > 1:  # LLaVA-OneVision: a tile each
        counts = [1] * len(sizes)
    else:
        pinpoints, side = image_processor.image_grid_pinpoints, pixels[0].shape[-1]
        counts = [pinpoint_tiles(_pair(size), pinpoints, side) for size in sizes]
    return np.concatenate(
        [_array(each)[:count] for each, count in zip(pixels, counts, strict=True)]
    )


def _pair(size: Any) -> Size:
    height, width = size
    return int(height), int(width)


def _array(value: Any) -> Any:
    """Return a processor's value as an array: numpy's, torch's or a list of either."""
    if isinstance(value, list | tuple) and value and hasattr(value[0], "numpy"):
        return np.stack([each.numpy() for each in value])
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
