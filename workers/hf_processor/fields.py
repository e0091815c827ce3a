"""Fields of a sample from what a processor returns: arrays without a batch axis.

Fields of tokens are (n,). Of images all tiles of a sample stand one after another, whatever the
processor made of it: Idefics' have a batch axis, LLaVA-NeXT's images are padded to the tiles of the
largest. A sample without images has the fields of images too, of no rows, so that batches of both
kinds have the same fields. Those of videos and sounds are in samples with videos and sounds only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Fields = dict[str, Any]
PER_TOKEN = ("input_ids", "labels", "token_type_ids", "mm_token_type_ids")
TILES = "tiles_per_image"
# Fields of videos and sounds begin so.
_OF_CLIPS = (
    "pixel_values_videos", "video_", "second_per_grid", "input_features", "feature_", "audio_",
)  # fmt: skip
# Their processors give, and their models take, images with an axis of the batch.
NESTED = ("idefics2", "idefics3", "smolvlm")
_PADDED = ("LlavaNext", "LlavaOnevision")


def token_fields(outputs: Mapping[str, Any]) -> Fields:
    """Return what a processor returns of one text, fields of tokens as int64 (n,)."""
    return {
        name: np.asarray(value[0], np.int64) if name in PER_TOKEN else value
        for name, value in outputs.items()
        if name != "attention_mask"  # of one sample all is attended to
    }


def clip_fields(outputs: Mapping[str, Any]) -> Fields:
    """Return the fields of videos and sounds of what a processor returned, as arrays."""
    return {name: _array(outputs[name]) for name in outputs if name.startswith(_OF_CLIPS)}


def sample_fields(outputs: Fields, processor: Any, tiles: Sequence[int] | None) -> Fields:
    """Return the fields of a sample with images; tiles: how many each is, None if that is unknown.

    Raises RuntimeError where there are more or fewer.
    """
    tokens = {name: value for name, value in outputs.items() if name in PER_TOKEN}
    is_nested, fields = nests_images(processor), Fields()
    for name, value in outputs.items():
        if name not in PER_TOKEN and not name.startswith(_OF_CLIPS):
            fields[name] = _array(value[0] if is_nested or name == "batch_num_images" else value)
    if tiles is None:
        return {**tokens, **fields}
    kind = type(processor.image_processor).__name__
    pixels = fields["pixel_values"]
    # An image's tiles are padded to the most that one of the sample has, and cut to its own below.
    padded = [len(image) for image in pixels] if kind.startswith(_PADDED) else None
    if len(pixels) != (sum(tiles) if padded is None else len(tiles)) or (
        padded and max(padded) != max(tiles)
    ):
        raise RuntimeError(
            f"{kind} made pixel_values of shape {pixels.shape} of images that are known to be "
            f"{[*tiles]} tiles: its rule in workers/hf_processor/sizes.py is that of transformers "
            "5.23, and this is another version"
        )
    if padded:
        pairs = zip(pixels, tiles, strict=True)
        fields["pixel_values"] = np.concatenate([image[:count] for image, count in pairs])
    return {**tokens, **fields, TILES: np.array(tiles, np.int64)}


def nests_images(processor: Any) -> bool:
    """Return whether a processor gives images an axis of the batch, as its model takes them."""
    return type(processor.image_processor).__name__.lower().startswith(NESTED)


def _array(value: Any) -> Any:
    """Return a processor's value as an array: numpy's, torch's or a list of either."""
    if isinstance(value, list | tuple) and value and hasattr(value[0], "numpy"):
        return np.stack([tensor.numpy() for tensor in value])
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
