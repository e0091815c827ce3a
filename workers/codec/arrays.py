"""Encodes dicts of arrays, and reads their headers, at a part of what fields of any kind cost.

Samples of one data set have the same fields, of which shapes alone differ, as texts have different
lengths: so what a header says of a field is remembered for each shape, and a header is joined of
its fields. All of a header's arrays are read and checked at once, by msgspec.
"""

import functools
import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from .fields import (
    ALIGNMENT,
    DTYPES,
    MAX_DIMENSIONS,
    MAX_EXTENT,
    MAX_FIELDS,
    MAX_NAME_CHARACTERS,
    Buffer,
    FieldLayout,
    bytes_of,
    place_after,
    read_layout,
)

# Arrays of one name and type have as many shapes as texts have lengths.
FIELDS_REMEMBERED = 4096
# To copy a payload of this size twice costs less than to handle its buffers one by one.
MOST_JOINED_BYTES = 16 << 10

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

    They are those of `frames.encode`, with the header packed, and a small payload in one buffer.

    >>> header, buffers = encode_arrays({"ids": np.array([65, 66], np.uint8)})
    >>> msgspec.msgpack.decode(header), buffers
    ({'fields': [['ids', 'array', '|u1', [2]]]}, [b'AB'])
    """
    if type(value) is not dict or len(value) > MAX_FIELDS:
        return None
    header = [_front(len(value))]
    contents: list[Any] = []
    end = 0
    for name, array in value.items():
        if type(array) is not np.ndarray or type(name) is not str:
            return None
        dtype = array.dtype
        if dtype.metadata is not None:  # equal to the same without, but no field
            return None
        field = _field(name, dtype, array.shape)
        if field is None:
            return None
        header.append(field[0])
        nbytes = field[1]
        # An empty one has no place, and those behind another begin where they are aligned.
        if nbytes:
            gap = -end % ALIGNMENT
            if gap:
                contents.append(_ZEROS[gap])
            contents.append(array)
            end += gap + nbytes
    if not all(header):
        _refuse_shapes(value)
    return b"".join(header), _buffers(contents, end)


def _buffers(contents: list[Any], nbytes: int) -> list[Buffer]:
    """Return the buffers of a payload, given as bytes and arrays."""
    if 0 < nbytes <= MOST_JOINED_BYTES:
        try:
            return [b"".join(contents)]
        except TypeError:
            pass  # an array that lies in another order has to be copied first
    return [each if type(each) is bytes else bytes_of(each) for each in contents]


@functools.lru_cache(FIELDS_REMEMBERED)
def _field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, int] | None:
    """Return an array's part of the header, and its bytes in the payload; None if it is no field.

    The part is empty where no reader takes the shape.
    """
    if len(name) > MAX_NAME_CHARACTERS or DTYPES.get(dtype.str) != dtype:
        return None
    nbytes = math.prod(shape) * dtype.itemsize
    # What memory has is of a size that readers take.
    if len(shape) > MAX_DIMENSIONS or (not nbytes and max(shape) > MAX_EXTENT):
        return b"", 0
    return _PACKER.encode((name, "array", dtype.str, shape)), nbytes


@functools.cache
def _front(fields: int) -> bytes:
    """Return a header's bytes before its fields."""
    return _PACKER.encode({"fields": [None] * fields})[: -fields or None]


def _refuse_shapes(value: dict[str, Any]) -> None:
    """Raise CodecError for the first shape that no reader takes."""
    for name, array in value.items():
        read_layout([[name, "array", array.dtype.str, list(array.shape)]])


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
