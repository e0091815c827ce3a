"""Lays out samples that are not decoded, where all are dicts of the same arrays.

What a batch is made of follows from the headers, and its bytes are copied from where they lie: no
sample is made, nor any array of one. What `layouts.py` makes of the decoded samples is the same;
whatever would be an error there, or is not usual, gives None here.
"""

from collections.abc import Collection, Container, Sequence
from itertools import compress, islice, repeat
from typing import Any

import numpy as np
import torch

from ...balancer.planning.problem.options import LayoutName
from ...workers.codec.columns import (
    Column,
    ColumnReader,
    Places,
    first_extent,
    other_extents,
)
from ...workers.lending.placed_payloads import PlacedPayloads
from .fields import (
    KNOWN_FIELDS,
    Allocate,
    Array,
    Batch,
    filled_tensor,
    images_of,
    joined_tensor,
    no_pixels,
)
from .layouts import NO_LABELS, packed_texts, padded_texts
from .payloads import bytes_of

Columns = dict[str, Column]
_NO_OWNERS = np.zeros(0, np.int64)


def collate_undecoded(
    layout: LayoutName,
    reader: ColumnReader,
    headers: Sequence[bytes],
    payloads: Collection[Any],
    fields: Container[str],
    *,
    pad_id: int,
    dummy_tile: int,
    allocate: Allocate,
) -> Batch | None:
    """Return the batch of samples that are not decoded; None where they have to be.

    headers, payloads: as encode_packed makes them; the rest as for collate_padded.
    """
    columns = reader.read(headers, _places_of(payloads))
    if columns is None:
        return None
    read = _texts(columns)
    images = _images(columns, len(headers), dummy_tile, allocate, fields)
    others = _others(columns, allocate, fields)
    if read is None or images is None or others is None:
        return None
    if layout == "packed":
        texts = packed_texts(*read, allocate, fields)
    else:
        texts = padded_texts(*read, pad_id, allocate, fields)
    return texts | images | others


def _places_of(payloads: Collection[Any]) -> Places:
    if isinstance(payloads, PlacedPayloads):
        places = payloads.handles
        return Places(payloads.runs, places.run_of, places.offsets, places.lengths)
    runs = [*map(bytes_of, payloads)]
    return Places(runs, range(len(runs)), [0] * len(runs), [*map(len, runs)])


def _texts(columns: Columns) -> tuple[Sequence[Array], Sequence[Array]] | None:
    """Return tokens and labels of every sample."""
    tokens, labels = columns.get("input_ids"), columns.get("labels")
    if tokens is None or len(tokens.shapes[0]) != 1 or (0,) in tokens.shapes:
        return None
    if labels is None:
        return tokens.pieces(), [NO_LABELS] * len(tokens.counts)
    return (tokens.pieces(), labels.pieces()) if labels.shapes == tokens.shapes else None


def _images(
    columns: Columns, samples: int, dummy_tile: int, allocate: Allocate, fields: Container[str]
) -> Batch | None:
    """Return all tiles in one array, and their owners."""
    tiles, owned = columns.get("pixel_values"), columns.get("tiles_per_image")
    if tiles is None and not dummy_tile:
        return {}
    rows = [0] * samples if tiles is None else _lengths(tiles)
    owners, counts = _NO_OWNERS, [0] * samples
    if owned is not None:
        if owned.dtype.kind not in "iu" or len(owned.shapes[0]) != 1:
            return None
        owners, counts = owned.elements(), owned.counts
    # All samples' images, one after the other: each sample takes its own.
    tiles_of = iter(owners.tolist())
    if [*map(sum, map(islice, repeat(tiles_of), counts))] != rows:
        return None
    batch: Batch = {}
    if "pixel_values" in fields:
        pixels = _pixels(tiles, rows, dummy_tile, allocate)
        if pixels is None:
            return None
        batch["pixel_values"] = pixels
    return batch | images_of(owners, counts, allocate, fields)


def _pixels(
    tiles: Column | None, rows: Sequence[int], dummy_tile: int, allocate: Allocate
) -> torch.Tensor | None:
    """Return all tiles in one array; None where they differ in size."""
    if tiles is None or not any(rows):
        return no_pixels(dummy_tile, 0 if tiles is None else tiles.shapes[0][-1], allocate)
    # Those of a sample without tiles may have any size.
    sizes = set(map(other_extents, compress(tiles.shapes, rows)))
    if len(sizes) > 1:
        return None
    return joined_tensor(tiles.pieces(), (sum(rows), *sizes.pop()), allocate)


def _others(columns: Columns, allocate: Allocate, fields: Container[str]) -> Batch | None:
    """Return every field without a meaning of its own."""
    batch: Batch = {}
    for name, column in columns.items():
        if name in KNOWN_FIELDS:
            continue
        lengths, sizes = _lengths(column), set(map(other_extents, column.shapes))
        if lengths is None or len(sizes) > 1:
            return None
        if name in fields:
            shape = (sum(lengths), *sizes.pop())
            batch[name] = joined_tensor(column.pieces(), shape, allocate)
        if f"{name}_lengths" in fields:
            batch[f"{name}_lengths"] = filled_tensor(allocate, lengths, np.int32)
    return batch


def _lengths(column: Column) -> list[int] | None:
    """Return the length of each sample's array; None where they have none."""
    return [*map(first_extent, column.shapes)] if column.shapes[0] else None
