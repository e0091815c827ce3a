"""Lays out samples that are dicts of the same arrays, field by field.

What `layouts.py` makes of the samples one by one is the same; whatever would be an error there, or
is not usual, gives None here. Several microbatches are laid out at a time: see `parts.py`.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import compress, islice, repeat
from typing import Any

import numpy as np
import torch

from ...balancer.planning.problem.options import LayoutName
from ...workers.codec.columns import (
    Column,
    HeldColumn,
    columns_of,
    first_extent,
    other_extents,
)
from ...workers.codec.tensors import Encoded, encode_batch
from .fields import (
    EVERY,
    KNOWN_FIELDS,
    Allocate,
    Array,
    Batch,
    filled_array,
    joined_array,
    no_pixels,
)
from .layouts import NO_LABELS, packed_texts, padded_texts
from .parts import Parts

Field = Column | HeldColumn
Columns = Mapping[str, Column] | Mapping[str, HeldColumn]
_NO_OWNERS = np.zeros(0, np.int64)


def collate_together(
    layout: LayoutName, samples: Sequence[Any], sizes: Sequence[int], **given: Any
) -> list[Encoded] | None:
    """Return the batches of microbatches of these sizes; None where some sample is not usual.

    Usual ones have labels. given: as for `lay_out`.
    """
    columns = columns_of(samples)
    if columns is None or "labels" not in columns:
        return None
    batches = lay_out(layout, columns, sizes, EVERY, **given, make=_as_it_is)
    found = [encoded for batch in batches or () if (encoded := encode_batch(batch)) is not None]
    return found if len(found) == len(sizes) else None


def lay_out(
    layout: LayoutName,
    columns: Columns,
    sizes: Sequence[int],
    fields: Container[str],
    *,
    pad_id: int,
    dummy_tile: int,
    allocate: Allocate,
    make: Callable[[Array], Any] = torch.from_numpy,
) -> list[Batch] | None:
    """Return the batches of microbatches of these sizes, whose samples `columns` have.

    None where samples are not usual. `make` makes a tensor of an array; others: collate_padded.
    """
    read = _texts(columns)
    if read is None:
        return None
    parts = Parts(sizes, make)
    if layout == "packed":
        packed_texts(*read, parts, allocate, fields)
    else:
        each = zip(parts.batches, parts.of_each(read[0]), parts.of_each(read[1]), strict=True)
        for batch, tokens, labels in each:
            texts = padded_texts(tokens, labels, pad_id, allocate, fields)
            batch |= {name: make(array) for name, array in texts.items()}
    is_usual = _deal_images(columns, parts, dummy_tile, allocate, fields) and _deal_others(
        columns, parts, allocate, fields
    )
    return parts.batches if is_usual else None


def _texts(columns: Columns) -> tuple[Sequence[Array], Sequence[Array]] | None:
    """Return tokens and labels of every sample."""
    tokens, labels = columns.get("input_ids"), columns.get("labels")
    if tokens is None or len(tokens.shapes[0]) != 1 or (0,) in tokens.shapes:
        return None
    if labels is None:
        return tokens.pieces(), [NO_LABELS] * len(tokens.counts)
    return (tokens.pieces(), labels.pieces()) if labels.shapes == tokens.shapes else None


def _deal_images(
    columns: Columns, parts: Parts, dummy_tile: int, allocate: Allocate, fields: Container[str]
) -> bool:
    """Put all tiles in one array, and their owners; return False where samples are not usual."""
    tiles, owned = columns.get("pixel_values"), columns.get("tiles_per_image")
    if tiles is None and not dummy_tile:
        return True
    samples = len(columns["input_ids"].counts)
    # By sample the tiles that it has; by image the tiles that it owns; by sample its images.
    rows = [0] * samples if tiles is None else _lengths(tiles)
    owners, counts = _NO_OWNERS, [0] * samples
    if owned is not None:
        if owned.dtype.kind not in "iu" or len(owned.shapes[0]) != 1:
            return False
        owners, counts = owned.elements(), owned.counts
    if rows is None or _tiles_of_samples(owners.tolist(), counts) != rows:
        return False
    if "pixel_values" in fields and not _deal_pixels(tiles, rows, parts, dummy_tile, allocate):
        return False
    if "tiles_per_image" in fields:
        shapes = [(images,) for images in parts.sums(counts)]
        parts.deal("tiles_per_image", filled_array(allocate, owners, np.int32), shapes)
    if "images_per_sample" in fields:
        joined = filled_array(allocate, counts, np.int32)
        parts.deal("images_per_sample", joined, parts.one_a_sample)
    return True


def _tiles_of_samples(owners: list[int], counts: list[int]) -> list[int]:
    """Return the number of each sample's tiles, of those of all images in order."""
    tiles_of = iter(owners)
    if max(counts) <= 1:  # most often: the next image's, or none
        return [count and next(tiles_of) for count in counts]
    return [*map(sum, map(islice, repeat(tiles_of), counts))]


def _as_it_is(array: Array) -> Array:
    return array


def _deal_pixels(
    tiles: Field | None,
    rows: list[int],
    parts: Parts,
    dummy_tile: int,
    allocate: Allocate,
) -> bool:
    """Put all tiles of a microbatch in one array; return False where they differ in size."""
    shapes = []
    extents = [()] * len(rows) if tiles is None else [*map(other_extents, tiles.shapes)]
    for own_rows, own_extents in zip(parts.of_each(rows), parts.of_each(extents), strict=True):
        # Those of a sample without tiles may have any size.
        sizes = set(compress(own_extents, own_rows))
        if len(sizes) > 1:
            return False
        shapes.append((sum(own_rows), *sizes.pop()) if sizes else (0,))
    if tiles is not None and any(rows):
        joined = joined_array(tiles.pieces(), (sum(tiles.counts),), allocate)
        parts.deal("pixel_values", joined, shapes)
    for batch, shape, own in zip(parts.batches, shapes, parts.of_each(extents), strict=True):
        if not shape[0]:
            side = own[0][-1] if own[0] else 0
            batch["pixel_values"] = parts.make(no_pixels(dummy_tile, side, allocate))
    return True


def _deal_others(
    columns: Columns, parts: Parts, allocate: Allocate, fields: Container[str]
) -> bool:
    """Put every field without a meaning of its own; return False where samples are not usual."""
    for name, column in columns.items():
        if name in KNOWN_FIELDS:
            continue
        lengths = _lengths(column)
        sizes = [*map(set, parts.of_each([*map(other_extents, column.shapes)]))]
        if lengths is None or any(len(each) > 1 for each in sizes):
            return False
        if name in fields:
            joined = joined_array(column.pieces(), (sum(column.counts),), allocate)
            totals = parts.sums(lengths)
            shapes = [(n, *each.pop()) for n, each in zip(totals, sizes, strict=True)]
            parts.deal(name, joined, shapes)
        if f"{name}_lengths" in fields:
            joined = filled_array(allocate, lengths, np.int32)
            parts.deal(f"{name}_lengths", joined, parts.one_a_sample)
    return True


def _lengths(column: Field) -> list[int] | None:
    """Return the length of each sample's array; None where they have none."""
    return [*map(first_extent, column.shapes)] if column.shapes[0] else None
