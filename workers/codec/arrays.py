"""Encodes dicts of arrays, and reads their headers, at a part of what fields of any kind cost.

Samples of one data set have few different kinds (names and types), which are checked once each;
shapes differ, as texts have different lengths, so that they are written anew for each sample. All
of a header's arrays are read and checked at once, by msgspec.
"""

import functools
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ...balancer.server.sample_layout import (
    ALIGNMENT,
    DTYPES,
    MAX_DIMENSIONS,
    MAX_EXTENT,
    MAX_FIELDS,
    MAX_NAME_CHARACTERS,
)
from .fields import Buffer, FieldLayout, bytes_of, place_after, read_layout

KINDS_REMEMBERED = 256

# Name and type of each array.
Kind = tuple[tuple[str, np.dtype[Any]], ...]
_ZEROS = tuple(bytes(length) for length in range(ALIGNMENT))
_PACKER = msgspec.msgpack.Encoder()

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]
Extent = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXTENT)]
_Shape = Annotated[tuple[Extent, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
ArrayEntry = tuple[_Name, Literal["array"], str, _Shape]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """A packed header that has arrays only."""

    fields: Annotated[list[ArrayEntry], msgspec.Meta(max_length=MAX_FIELDS)]


_UNPACKER = msgspec.msgpack.Decoder(_Header)


def encode_arrays(value: object) -> tuple[bytes, list[Buffer]] | None:
    """Return a dict's packed header and the buffers of its payload; None if it holds other things.

    They are those of `frames.encode`, with the header packed.

    >>> header, buffers = encode_arrays({"ids": np.array([65, 66], np.uint8)})
    >>> msgspec.msgpack.decode(header), [bytes(each) for each in buffers]
    ({'fields': [['ids', 'array', '|u1', [2]]]}, [b'AB'])
    """
    if type(value) is not dict:
        return None
    kind = []
    for name, array in value.items():
        if type(array) is not np.ndarray or type(name) is not str:
            return None
        dtype = array.dtype
        if dtype.metadata is not None:  # equal to the same without, but no field
            return None
        kind.append((name, dtype))
    codes = _codes(tuple(kind))
    if codes is None:
        return None
    layout: list[tuple[str, str, str, tuple[int, ...]]] = []
    buffers: list[Buffer] = []
    end = 0
    for (name, array), code in zip(value.items(), codes, strict=True):
        shape, nbytes = array.shape, array.nbytes
        layout.append((name, "array", code, shape))
        # An empty one has no place, and those behind another begin where they are aligned.
        if nbytes:
            gap = -end % ALIGNMENT
            if gap:
                buffers.append(_ZEROS[gap])
            buffers.append(bytes_of(array))
            end += gap + nbytes
        if not nbytes or len(shape) > MAX_DIMENSIONS:
            _check_shape(name, code, shape)
    return _PACKER.encode({"fields": layout}), buffers


def _check_shape(name: str, code: str, shape: tuple[int, ...]) -> None:
    """Raise CodecError for a shape that no reader takes."""
    read_layout([[name, "array", code, list(shape)]])


@functools.lru_cache(KINDS_REMEMBERED)
def _codes(kind: Kind) -> tuple[str, ...] | None:
    """Return what the header calls each type; None if these are no fields."""
    names_fit = all(len(name) <= MAX_NAME_CHARACTERS for name, _ in kind)
    types_fit = all(DTYPES.get(dtype.str) == dtype for _, dtype in kind)
    if len(kind) > MAX_FIELDS or not (names_fit and types_fit):
        return None
    return tuple(dtype.str for _, dtype in kind)


def read_header(header: bytes) -> list[ArrayEntry] | None:
    """Return name, kind, type code and shape of each array; None if there is anything else.

    Type codes and names are not checked.
    """
    try:
        return _UNPACKER.decode(header).fields
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def read_arrays(header: bytes) -> FieldLayout | None:
    """Return what `read_layout` does of a packed header; None if it is not one of arrays only.

    >>> read_arrays(encode_arrays({"ids": np.array([65, 66], np.uint8)})[0]).nbytes
    2
    """
    found = read_header(header)
    if found is None:
        return None
    places, end = [], 0
    for name, kind, code, shape in found:
        dtype = DTYPES.get(code)
        if dtype is None:
            return None
        place = place_after(end, name, kind, dtype, shape)
        places.append(place)
        end = place.end or end
    if len({place.name for place in places}) < len(places):
        return None
    return FieldLayout(tuple(places), end)
