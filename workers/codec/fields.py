"""Encodes dicts of named arrays and scalars without pickle, and decodes them.

The header says what the fields are, in order; the payload is their bytes, each field at the next
multiple of 64. Offsets are therefore not written down, and a reader cannot be sent astray by them:
it walks the fields, and checks every length against the payload before it is used. What comes
from another host is read by this module only.
"""

import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
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


def decode_fields(layout: object, payload: memoryview) -> dict[str, Any]:
    """Return the fields, arrays as views of the payload. Raises CodecError for anything malformed.

    >>> decode_fields([["label", "number", 3], ["text", "text", 3]], memoryview(b"cat"))
    {'label': 3, 'text': 'cat'}
    """
    if not isinstance(layout, list) or len(layout) > MAX_FIELDS:
        raise CodecError(f"a layout is a list of at most {MAX_FIELDS} fields")
    found: dict[str, Any] = {}
    end = 0
    for entry in layout:
        name, kind, *rest = _entry(entry)
        if name in found:
            raise CodecError(f"two fields are called {name!r}")
        if kind == "number":  # it is in the layout itself
            found[name] = _number(rest)
            continue
        dtype, shape = _extent(kind, rest)
        # as Python ints: a product of hostile extents must not wrap
        nbytes = math.prod(shape) * dtype.itemsize
        start = padded(end) if nbytes else end
        end = start + nbytes
        if end > len(payload):
            raise CodecError(f"{name!r} ends at byte {end}, the payload has {len(payload)}")
        found[name] = value_in(kind, dtype, shape, payload[start:end])
    if end != len(payload):
        raise CodecError(f"the fields end at byte {end}, the payload has {len(payload)}")
    return found


def why_bad_layout(header: bytes, payload: Any) -> str:
    """Return why ranks could not read a payload (a buffer) with this header, "" if they can.

    A balancer hands on what it has no use for: what is wrong would be noticed by a rank, which does
    not know who sent it. So a balancer of workers on other hosts asks this of what they send.

    >>> why_bad_layout(msgpack.packb({"fields": [["text", "text", 3]]}), b"cat")
    ''
    >>> why_bad_layout(msgpack.packb({"fields": [["text", "text", 3]]}), b"cats")
    'its payload cannot be read: the fields end at byte 3, the payload has 4'
    """
    try:
        described = msgpack.unpackb(header)
        if not isinstance(described, dict) or list(described) != ["fields"]:
            return "its header describes no fields"
        decode_fields(described["fields"], bytes_in(getattr(payload, "buffer", payload)))
    except CodecError as error:
        return f"its payload cannot be read: {error!s:.300}"
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        return f"its header is none: {type(error).__name__} {error!s:.80}".rstrip()
    return ""


def bytes_in(payload: Any) -> memoryview:
    """Return any contiguous buffer as bytes."""
    view = memoryview(payload)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


def padded(size: int) -> int:
    """Return the next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(contents: Iterable[Buffer]) -> list[Buffer]:
    """Return the buffers that are not empty, with zeros between them: each starts at 64 * n."""
    found: list[Buffer] = []
    end = 0
    for content in contents:
        if len(content):
            if gap := padded(end) - end:
                found.append(bytes(gap))
            found.append(content)
            end += gap + len(content)
    return found


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's elements in C order as bytes; copies only if they are in another order."""
    try:
        return array.data.cast("B")
    except TypeError:  # it is empty, of complex numbers, or in another order
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _is_field(value: object) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    if isinstance(value, np.ndarray):
        return (
            type(value) is np.ndarray
            and DTYPES.get(value.dtype.str) == value.dtype
            and value.dtype.metadata is None
            and value.ndim <= MAX_DIMENSIONS
            and max(value.shape, default=0) <= MAX_EXTENT  # an empty one's may be anything
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
    if not is_shape(shape):
        raise CodecError(f"no such shape: {reprlib.repr(shape)}")
    return dtype, tuple(shape)


def is_shape(shape: list[Any]) -> bool:
    """Return whether a list is a shape that is read; strides of an empty one fit 64 bits, too."""
    lengths = (type(length) is int and 0 <= length <= MAX_EXTENT for length in shape)
    is_list = len(shape) <= MAX_DIMENSIONS and all(lengths)
    return is_list and math.prod(length or 1 for length in shape) < 1 << 59


def value_in(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: memoryview) -> object:
    """Return bytes or text in as many bytes, or else an array on them; CodecError if it is none."""
    if kind not in ("bytes", "text"):
        try:
            # An empty one is new, and the caller's.
            return np.ndarray(shape, dtype, data) if len(data) else np.empty(shape, dtype)
        except ValueError as error:
            raise CodecError(f"no such shape: {shape}") from error
    if kind == "bytes":
        return bytes(data)
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CodecError(f"not text: {error}") from error
