"""Collates samples to one batch, `padded` or `packed`, and copies each payload byte once.

A sample maps field names to arrays, numbers, strings or bytes. Four fields have a meaning:

    input_ids        integer (n,)            tokens
    labels           integer (n,)            aligned with input_ids; -100 where there is no loss
    pixel_values     uint8 (tiles, 3, S, S)  may be absent or have 0 tiles
    tiles_per_image  integer (images,)       goes with pixel_values

Labels are aligned with the tokens and models shift them inside (position i predicts token i + 1),
as Hugging Face models do. Nothing precedes a sample's first token, and in a pack the last token of
the sample before would be asked for it; so the first label of every sample becomes -100, in both
layouts, which also makes both count the same label tokens.

Fields that the layouts make themselves (MADE) follow from these. What a tokenizer gives beside its
tokens (attention_mask, position_ids) is left out where it says the same, and refused where it says
otherwise: it would take the place of the batch's own, and samples would attend to each other.

Any other field follows one rule: numbers become a tensor (B,); strings and bytes (and None beside
them) a list; arrays (torch's and lists of numbers too) are concatenated along their first axis, and
`<name>_lengths` int32 (B,) says how long each was. Anything else is refused; see fields.py.

A microbatch without samples becomes a valid batch of zero weight: one pad token without a label.
A microbatch without images can be given a dummy tile, for encoders that every rank must run (FSDP,
DDP): one zero tile in pixel_values that no entry of tiles_per_image owns. A model runs its encoder
over all tiles, uses the first sum(tiles_per_image) features, and adds 0 * the rest to its output.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from ...balancer.planning.problem.options import LayoutName
from ...workers.sources.labels import IGNORED
from .fields import (
    EVERY,
    TOO_LARGE,
    Array,
    Batch,
    Sample,
    array_of,
    collate_others,
    concatenated,
    empty_array,
    filled_tensor,
)

# Fields that have a meaning of their own, and those that a layout makes, in either.
KNOWN_FIELDS = frozenset({"input_ids", "labels", "pixel_values", "tiles_per_image"})
MADE = frozenset({
    "attention_mask", "position_ids", "cu_seq_lens", "max_length", "images_per_sample",
})  # fmt: skip
# Every other one is collated by its kind alone.
RESERVED = KNOWN_FIELDS | MADE
_ATTENDED = np.array(1)


def collate_images(
    samples: Sequence[Sample], dummy_tile: int, fields: Container[str] = EVERY
) -> Batch:
    """Return all tiles in one array, and their owners; empty for data without images.

    fields: the names of what is wanted of it; nothing else is copied.
    """
    tiles = {
        place: array_of(sample["pixel_values"], place, "pixel_values")
        for place, sample in enumerate(samples)
        if "pixel_values" in sample
    }
    if not (tiles or dummy_tile or not samples):
        return {}
    owners = [_tiles_per_image(place, sample) for place, sample in enumerate(samples)]
    batch: Batch = {}
    if "pixel_values" in fields:
        batch["pixel_values"] = _pixels(tiles, dummy_tile)
    if "tiles_per_image" in fields:
        every = np.concatenate([*owners, ()])
        batch["tiles_per_image"] = filled_tensor(every, np.int32)
    if "images_per_sample" in fields:
        counts = [*map(len, owners)] or [0]
        batch["images_per_sample"] = filled_tensor(counts, np.int32)
    return batch


def _pixels(tiles: Mapping[int, Array], dummy_tile: int) -> torch.Tensor:
    """Return all tiles in one array; tiles: those of a sample by its place."""
    held = {place: array for place, array in tiles.items() if len(array)}
    if held:
        return concatenated("pixel_values", held)
    # An encoder under FSDP must run on every rank: a dummy tile gives it something to do.
    side = dummy_tile or (next(iter(tiles.values())).shape[-1] if tiles else 0)
    return filled_tensor(np.zeros((1 if dummy_tile else 0, 3, side, side), np.uint8), np.uint8)


def _tiles_per_image(place: int, sample: Sample) -> Array:
    """Return a sample's tiles_per_image; ValueError where they are not as many as its tiles."""
    owned = array_of(sample.get("tiles_per_image", ()), place, "tiles_per_image")
    pixels = array_of(sample.get("pixel_values", ()), place, "pixel_values")
    if owned.ndim != 1 or not pixels.ndim or (owned.size and owned.dtype.kind not in "iu"):
        raise ValueError(
            f"sample {place} has tiles_per_image {owned.dtype} {owned.shape} and pixel_values of "
            f"shape {pixels.shape}; use whole numbers (images,) and an array (tiles, 3, S, S)"
        )
    if len(pixels) != owned.sum() or owned.min(initial=0) < 0:
        raise ValueError(
            f"sample {place} has {len(pixels)} tiles in pixel_values, but its tiles_per_image "
            f"{owned.tolist()} makes {int(owned.sum())}; give one entry per image"
        )
    return owned


def collate_padded(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    fields: Container[str] = EVERY,
) -> Batch:
    """Stack samples as rows, filled up to the longest.

    Gives input_ids, labels, attention_mask int64 (B, longest): pad_id, -100 and 0 in the filling;
    pixel_values uint8 (tiles, 3, S, S), tiles_per_image int32 (images,) and images_per_sample
    int32 (B,); and every other field by the rule above. dummy_tile is the side in pixels of the
    zero tile that a batch without images gets, 0 for none; fields: the names of what is wanted of
    all this. Raises ValueError for samples that do not fit together.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> collate_padded(rows)["input_ids"].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    tokens, labels = _texts(samples, pad_id)
    texts = _padded_texts(tokens, labels, pad_id, fields)
    return {
        **{name: torch.from_numpy(array) for name, array in texts.items()},
        **collate_images(samples, dummy_tile, fields),
        **collate_others(samples, RESERVED, fields),
    }


def _padded_texts(
    tokens: Sequence[Array],
    labels: Sequence[Array],
    pad_id: int,
    fields: Container[str],
) -> dict[str, Array]:
    """Return the wanted fields that follow from tokens and labels, which have been checked."""
    longest = max(map(len, tokens))
    rows: dict[str, Array] = {}
    for name, values, fill in (
        ("input_ids", tokens, pad_id),
        ("labels", labels, IGNORED),
        ("attention_mask", [_ATTENDED] * len(tokens), 0),
    ):
        if name in fields:
            rows[name] = empty_array((len(tokens), longest), np.int64)
            for row, (ids, value) in enumerate(zip(tokens, values, strict=True)):
                rows[name][row, : len(ids)] = value
                rows[name][row, len(ids) :] = fill
    if "labels" in rows:
        rows["labels"][:, :1] = IGNORED
    return rows


def collate_packed(
    samples: Sequence[Sample],
    *,
    pad_id: int = 0,
    dummy_tile: int = 0,
    fields: Container[str] = EVERY,
) -> Batch:
    """Concatenate samples, without padding.

    Gives input_ids, labels, position_ids int64 (1, total), as Hugging Face models take them
    (positions restart at 0 with every sample); cu_seq_lens int32 (B + 1,) and max_length (an int)
    for flash-attention's varlen functions and the models' cu_seq_lens_q/k and max_length_q/k;
    images as in collate_padded. pad_id is used only for a batch without samples.

    >>> rows = [{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8])}]
    >>> batch = collate_packed(rows)
    >>> batch["input_ids"].tolist(), batch["position_ids"].tolist(), batch["cu_seq_lens"].tolist()
    ([[5, 6, 7, 8]], [[0, 1, 2, 0]], [0, 3, 4])
    """
    tokens, labels = _texts(samples, pad_id)
    return {
        **_packed_texts(tokens, labels, fields),
        **collate_images(samples, dummy_tile, fields),
        **collate_others(samples, RESERVED, fields),
    }


def _packed_texts(
    tokens: Sequence[Array], labels: Sequence[Array], fields: Container[str]
) -> Batch:
    """Return the wanted fields that follow from tokens and labels, which have been checked."""
    lengths = [*map(len, tokens)]
    begins = [*accumulate(lengths, initial=0)]
    batch: Batch = {}
    positions = [*map(np.arange, lengths)]
    for name, parts in (("input_ids", tokens), ("labels", labels), ("position_ids", positions)):
        if name in fields:
            row = empty_array((1, begins[-1]), np.int64)
            np.concatenate(parts, out=row[0], casting="unsafe")
            if name == "labels":
                row[0, begins[:-1]] = IGNORED
            batch[name] = torch.from_numpy(row)
    if "cu_seq_lens" in fields:
        batch["cu_seq_lens"] = filled_tensor(begins, np.int32)
    if "max_length" in fields:
        batch["max_length"] = max(lengths)
    return batch


COLLATE_BY_LAYOUT: dict[LayoutName, Callable[..., Batch]] = {
    "padded": collate_padded,
    "packed": collate_packed,
}


def _texts(samples: Sequence[Sample], pad_id: int) -> tuple[list[Array], list[Array]]:
    """Return tokens and labels of every sample; of one pad token where there is no sample."""
    tokens = [_tokens(sample, place) for place, sample in enumerate(samples)]
    if not tokens:
        return [np.array([pad_id])], [np.array([IGNORED])]
    labels = []
    for place, (sample, ids) in enumerate(zip(samples, tokens, strict=True)):
        _check_made(sample, place, len(ids))
        if "labels" not in sample:
            labels.append(np.full(len(ids), IGNORED))
            continue
        targets = array_of(sample["labels"], place, "labels")
        if targets.shape != ids.shape or not _is_whole(targets):
            raise ValueError(
                f"sample {place} has {len(ids)} input_ids and labels {targets.dtype} of shape "
                f"{targets.shape}; labels are aligned with input_ids, whole numbers with -100 "
                "where there is no loss"
            )
        labels.append(targets)
    return tokens, labels


def _is_whole(array: Array) -> bool:
    """Return whether all of an array are whole numbers that int64 has."""
    return array.dtype.kind in "iu" and (array.dtype != np.uint64 or array.max() < TOO_LARGE)


def _check_made(sample: Sample, place: int, tokens: int) -> None:
    """Raise ValueError for a field that layouts make, where it says otherwise than they do."""
    # a number max_length says nothing about the sample: the tokenizer was asked for no more
    for name in MADE.intersection(sample) - {"max_length"}:
        says: Any = {
            "attention_mask": np.ones(tokens),
            "position_ids": np.arange(tokens),
            "cu_seq_lens": [0, tokens],
            "images_per_sample": np.size(sample.get("tiles_per_image", ())),
        }[name]
        if not np.array_equal(array_of(sample[name], place, name), says):
            what = np.asarray(says)
            raise ValueError(
                f"sample {place} has {name} of its own, and not the one that follows from its "
                f"{tokens} input_ids ({np.array2string(what, threshold=6, edgeitems=2)}): layouts "
                "'padded' and 'packed' make that field themselves, of samples without padding. "
                "Cut padding off (input_ids[attention_mask == 1]), leave the field out, or give "
                "it another name"
            )


def _tokens(sample: Sample, place: int) -> Array:
    if type(sample) is not dict and not isinstance(sample, Mapping):
        raise TypeError(
            f"sample {place} is a {type(sample).__name__}, and layouts 'padded' and 'packed' need "
            "dicts with input_ids: return such from the dataset, or use layout='torch' with a "
            "collate_fn"
        )
    if "input_ids" not in sample:
        names = ", ".join(map(str, sample)) or "none"
        raise ValueError(
            f"sample {place} has no input_ids (its fields: {names}); give it some in the "
            "transform, or use layout='torch' with a collate_fn"
        )
    ids = array_of(sample["input_ids"], place, "input_ids")
    if ids.ndim != 1 or not len(ids):
        raise ValueError(f"sample {place} has input_ids of shape {ids.shape}; use (n,) with n >= 1")
    if not _is_whole(ids):
        raise ValueError(f"sample {place} has input_ids of {ids.dtype}; use whole numbers (int64)")
    return ids
