"""Encodes dicts of named arrays and scalars without pickle, and decodes them.

The header says what the fields are, in order; the payload is their bytes, each field at the next
multiple of 64. Offsets are therefore not written down, and a reader cannot be sent astray by them:
it walks the fields, and checks every length against the payload before it is used. What comes
from another host is read by this module only.
"""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes: each field begins at a multiple
MAX_FIELDS = 256
MAX_NAME_CHARACTERS = 256
MAX_DIMENSIONS = 8
MAX_EXTENT = 1 << 40
# one width, one byte order (the machines' own, little-endian)
DTYPES = {
    np.dtype(name).str: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
Fields = Mapping[str, "npt.NDArray[Any] | int | float | str | bytes"]
Buffer = bytes | memoryview


class CodecError(ValueError):
    """A header or payload that `encode` cannot have made."""


def holds_fields(value: object) -> bool:
    """Return whether a value is a plain dict of named arrays, numbers, text and bytes.

    >>> holds_fields({"label": 3, "text": "cat"}), holds_fields({"sizes": [1, 2]})
    (True, False)
    """
    return (
        type(value) is dict
        and len(value) <= MAX_FIELDS
        and all(type(name) is str and len(name) <= MAX_NAME_CHARACTERS for name in value)
        and all(_is_field(field) for field in value.values())
    )


def encode_fields(fields: Fields) -> tuple[list[list[Any]], list[Buffer]]:
    """Describe the fields, and list the buffers whose concatenation is the payload.

    >>> layout, buffers = encode_fields({"label": 3, "text": "cat"})
    >>> layout, b"".join(buffers)
    ([['label', 'number', 3], ['text', 'text', 3]], b'cat')
    """
    layout: list[list[Any]] = []
    contents: list[Buffer] = []
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            layout.append([name, "array", value.dtype.str, list(value.shape)])
            contents.append(bytes_of(value))
        elif isinstance(value, str):
            contents.append(value.encode("utf-8", "surrogatepass"))
            layout.append([name, "text", len(contents[-1])])
        elif isinstance(value, bytes):
            layout.append([name, "bytes", len(value)])
            contents.append(value)
        else:
            layout.append([name, "number", value])
    return layout, aligned(contents)


class FieldPlace(msgspec.Struct, frozen=True):
    """A field of a layout: its kind, and where it is in a payload; a number has its value here.

    count: elements; start, end: bytes, equal where there are none.
    """

    name: str
    kind: str
    number: int | float = 0
    dtype: np.dtype[Any] = DTYPES["|u1"]
    shape: tuple[int, ...] = ()
    count: int = 0
    start: int = 0
    end: int = 0


class FieldLayout(msgspec.Struct, frozen=True):
    """A layout that was checked: its fields, and the length of its payloads."""

    places: tuple[FieldPlace, ...]
    nbytes: int

    def read(self, payload: memoryview) -> dict[str, Any]:
        """Return the fields, arrays as views of the payload; CodecError if that has another length.

        A new dictionary each time, of new empty arrays: they are the caller's.
        """
        if len(payload) != self.nbytes:
            raise CodecError(self._why_other_length(len(payload)))
        return {place.name: _value(place, payload) for place in self.places}

    def _why_other_length(self, given: int) -> str:
        for place in self.places:
            if place.end > given:
                return f"{place.name!r} ends at byte {place.end}, the payload has {given}"
        return f"the fields end at byte {self.nbytes}, the payload has {given}"


def read_layout(layout: object) -> FieldLayout:
    """Check a layout, once for all payloads that have it; CodecError for anything malformed."""
    if not isinstance(layout, list) or len(layout) > MAX_FIELDS:
        raise CodecError(f"a layout is a list of at most {MAX_FIELDS} fields")
    places: dict[str, FieldPlace] = {}
    end = 0
    for entry in layout:
        name, kind, *rest = _entry(entry)
        if name in places:
            raise CodecError(f"two fields are called {name!r}")
        if kind == "number":  # it is in the layout itself
            places[name] = FieldPlace(name, kind, _number(rest))
            continue
        places[name] = place = place_after(end, name, kind, *_extent(kind, rest))
        end = place.end or end
    return FieldLayout(tuple(places.values()), end)


def place_after(
    end: int, name: str, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> FieldPlace:
    """Return a field that comes after those that end at byte `end`."""
    # as Python ints: a product of hostile extents must not wrap
    count = math.prod(shape)
    if not count:
        return FieldPlace(name, kind, 0, dtype, shape)
    start = padded(end)
    return FieldPlace(name, kind, 0, dtype, shape, count, start, start + count * dtype.itemsize)


def decode_fields(layout: object, payload: memoryview) -> dict[str, Any]:
    """Return the fields, arrays as views of the payload. Raises CodecError for anything malformed.

    >>> decode_fields([["label", "number", 3], ["text", "text", 3]], memoryview(b"cat"))
    {'label': 3, 'text': 'cat'}
    """
    return read_layout(layout).read(payload)


def padded(size: int) -> int:
    """Return the next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(contents: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers that are not empty, with zeros between them: each starts at 64 * n."""
    return list(_with_padding(contents))


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's elements in C order as bytes; copies only if they are in another order."""
    try:
        return array.data.cast("B")
    except TypeError:  # it is empty, of complex numbers, or in another order
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _with_padding(contents: Sequence[Buffer]) -> Iterator[Buffer]:
    end = 0
    for content in contents:
        if len(content) == 0:
            continue
        if padded(end) > end:
            yield bytes(padded(end) - end)
        yield content
        end = padded(end) + len(content)


def _is_field(value: object) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, np.ndarray):
        return (
            type(value) is np.ndarray
            and DTYPES.get(value.dtype.str) == value.dtype
            and value.dtype.metadata is None
            and value.ndim <= MAX_DIMENSIONS
        )
    return type(value) in (float, str, bytes)


def _entry(entry: object) -> list[Any]:
    match entry:
        case [str() as name, str(), *_] if len(name) <= MAX_NAME_CHARACTERS:
            return list(entry)
    raise CodecError("a field is a list of its name, its kind and its size")


def _number(rest: list[Any]) -> int | float:
    match rest:
        case [int() | float() as value] if _is_field(value):
            return value
    raise CodecError("a number is one integer of 64 bits or float")


def _extent(kind: str, rest: list[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return a field's type and shape; errors quote with reprlib, which bounds depth and length."""
    match kind, rest:
        case "array", [str() as name, [*shape]] if name in DTYPES:
            dtype = DTYPES[name]
        case (("text" | "bytes"), [length]):
            dtype, shape = DTYPES["|u1"], [length]
        case _:
            raise CodecError(f"no such field: {reprlib.repr(kind)} of {reprlib.repr(rest)}")
    if len(shape) > MAX_DIMENSIONS or not all(_is_length(length) for length in shape):
        raise CodecError(f"no such shape: {reprlib.repr(shape)}")
    return dtype, tuple(shape)


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_EXTENT


def _empty(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> object:
    if kind == "array":
        try:
            return np.empty(shape, dtype)
        except ValueError as error:
            raise CodecError(f"no such shape: {shape}") from error
    return "" if kind == "text" else b""


def _value(place: FieldPlace, payload: memoryview) -> object:
    if place.kind == "array" and place.count:
        return np.ndarray(place.shape, place.dtype, payload, place.start)
    if place.kind == "number":
        return place.number
    if not place.count:
        return _empty(place.kind, place.dtype, place.shape)
    data = payload[place.start : place.end]
    if place.kind == "bytes":
        return bytes(data)
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CodecError(f"not text: {error}") from error
