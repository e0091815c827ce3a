"""Takes a collated batch apart into its samples: the way back from `layouts.py`."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from .layouts import KNOWN_FIELDS, Array

LENGTHS = "_lengths"
# Fields of a layout's own, which no sample has.
MADE = frozenset({
    "attention_mask", "position_ids", "cu_seq_lens", "max_length", "images_per_sample",
})  # fmt: skip


def samples_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the samples of a padded or packed batch; ValueError for a batch of another layout.

    Each sample's first label is -100, as the layouts make it; samples that had no labels get some
    that are all -100. A dummy tile belongs to no sample.
    """
    if "input_ids" not in batch or not ("cu_seq_lens" in batch or "attention_mask" in batch):
        raise ValueError(
            "only batches of layout 'padded' or 'packed' can be taken apart, and this one has "
            f"{', '.join(map(str, batch))[:200]}: give Balance(layout='packed')"
        )
    ids, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    if "cu_seq_lens" in batch:
        # packed: one row has all samples, each between two borders
        ends = np.asarray(batch["cu_seq_lens"]).tolist()
        places = [(0, slice(*each)) for each in pairwise(ends)]
    else:
        lengths = np.asarray(batch["attention_mask"]).sum(axis=1).tolist()
        places = [(row, slice(0, length)) for row, length in enumerate(lengths)]
    samples = [{"input_ids": ids[place], "labels": labels[place]} for place in places]
    for name in batch:
        if name not in KNOWN_FIELDS | MADE and not _is_lengths(name, batch):
            values = _values(name, batch)
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
    if "pixel_values" in batch:
        _give_images(samples, batch)
    return samples


def _is_lengths(name: str, batch: Mapping[str, Any]) -> bool:
    return name.endswith(LENGTHS) and name.removesuffix(LENGTHS) in batch


def _values(name: str, batch: Mapping[str, Any]) -> Any:
    """Return a field's value of each sample."""
    if f"{name}{LENGTHS}" not in batch:
        return batch[name] if isinstance(batch[name], list) else np.asarray(batch[name])
    return _parts(np.asarray(batch[name]), batch[f"{name}{LENGTHS}"])


def _give_images(samples: list[dict[str, Any]], batch: Mapping[str, Any]) -> None:
    """Set each sample's tiles and how many its images have."""
    owners = _parts(np.asarray(batch["tiles_per_image"]), batch["images_per_sample"])
    tiles = _parts(np.asarray(batch["pixel_values"]), [int(each.sum()) for each in owners])
    for sample, owned, pixels in zip(samples, owners, tiles, strict=True):
        sample["tiles_per_image"], sample["pixel_values"] = owned, pixels


def _parts(whole: Array, lengths: Any) -> list[Array]:
    ends = np.cumsum([0, *np.asarray(lengths).tolist()]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
