"""Encodes samples and batches as a header and a payload, and decodes them without a copy.

    header, buffers = encode(sample)
    payload = bytearray().join(buffers)        # or the frames of a message
    sample = decode(header, payload)

The header is small and can be packed by msgpack. There are two forms: `fields` for what the
workers' sources give (a dict of arrays, numbers and text), which is read without pickle and can
come from anywhere; and `object` for anything else, which must not leave the machine: a pickle, with
the bytes of arrays and ordinary tensors beside it (`arena/packing.py`).
"""

import copyreg
import warnings
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from ..arena.packing import pack, unpack
from .fields import (
    Buffer,
    CodecError,
    aligned,
    bytes_in,
    decode_fields,
    encode_fields,
    holds_fields,
    padded,
)

Header = dict[str, Any]
# Tensors are used where they arrived, unless they would lie across machine words.
_WORD_BYTES = 8


def encode(value: object) -> tuple[Header, list[Buffer]]:
    """Return a value's header and the buffers whose concatenation is its payload.

    The buffers are views of the value's own memory where that is possible: use them before it
    changes. Raises what pickle raises for what it cannot pickle.

    >>> encode({"label": 3})
    ({'fields': [['label', 'number', 3]]}, [])
    """
    if holds_fields(value):
        layout, buffers = encode_fields(value)  # type: ignore[arg-type]
        return {"fields": layout}, buffers
    try:
        sizes, buffers = _encode_object(value)
    except Exception as error:
        for name, field in value.items() if isinstance(value, dict) else ():
            if not _can_be_sent(field):
                what = f"field {name!r} is a {type(field).__name__}"
                raise TypeError(f"{what}, which no process can send: {error}") from error
        raise
    return {"object": sizes}, buffers


def _can_be_sent(value: object) -> bool:
    try:
        _encode_object(value)
    except Exception:
        return False
    return True


def encode_packed(value: object) -> tuple[bytes, list[Buffer]]:
    """Return what `encode` does, the header packed."""
    header, buffers = encode(value)
    return msgpack.packb(header), buffers


def decode(header: object, payload: Any, allow_object: bool = False) -> Any:
    """Return the value; its arrays are views of the payload, writable if that is.

    `payload` is any contiguous buffer; arrays are aligned if it begins at a multiple of 64.
    Raises CodecError for what `encode` cannot have made, and for an object unless `allow_object`
    says that the other side is one of this machine's own processes.

    >>> decode({"fields": [["label", "number", 3]]}, b"")
    {'label': 3}
    """
    match header:
        case {"fields": layout, **rest} if not rest:
            return decode_fields(layout, bytes_in(payload))
        case {"object": sizes, **rest} if not rest:
            if not allow_object:
                raise CodecError("a pickled object is not taken from another host; send fields")
            return _decode_object(sizes, bytes_in(payload))
    raise CodecError("a header has one of 'fields' and 'object'")


def decode_packed(header: bytes, payload: Any, allow_object: bool = False) -> Any:
    """Return what `decode` does, where the header is packed.

    Raises what msgpack raises for a header that it has not packed, too.
    """
    return decode(msgpack.unpackb(header), payload, allow_object)


def payload_of(buffers: Sequence[Buffer]) -> bytearray:
    """Return the buffers joined to one.

    >>> payload_of([b"ca", memoryview(b"t")])
    bytearray(b'cat')
    """
    return bytearray().join(buffers)


def _encode_object(value: object) -> tuple[list[int], list[Buffer]]:
    """Return the sizes of the pickle and its buffers, and the buffers that make the payload.

    Raises what pickle raises for what it cannot pickle.
    """
    pickled, pieces = pack(value, None, copyreg.dispatch_table)
    contents = [pickled, *(piece.data for piece in pieces)]
    return [len(content) for content in contents], aligned(contents)


def _decode_object(sizes: Sequence[int], payload: memoryview) -> object:
    """Return the object; its arrays and tensors are views of the payload, writable if it is."""
    parts, end = list[memoryview](), 0
    for size in sizes:
        start = padded(end) if size else end
        end = start + size
        parts.append(payload[start:end])
    if not payload.readonly:
        return unpack(parts[0], parts[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nobody is told to write to it
        return unpack(parts[0], parts[1:])


def payload_buffer(payload: Any) -> memoryview:
    """Return a payload's memory: a ZeroMQ frame's own, or a buffer's; copied if not aligned.

    >>> bytes(payload_buffer(bytearray(b"pixels")))
    b'pixels'
    """
    whole = memoryview(getattr(payload, "buffer", payload))
    view = whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")
    if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % _WORD_BYTES:
        return memoryview(bytearray(view))
    return view
