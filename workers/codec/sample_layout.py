"""Checks that a payload has the layout that its header describes, without decoding it.

A balancer hands on what it cannot read: the codec says what a header means, and ranks read it.
A worker that sends rubbish would be noticed there, where nobody knows who sent it. So a balancer of
workers on other hosts compares what it is sent with the form that `fields.py` writes.
"""

import math
from typing import Any

import msgpack

from .fields import (
    ALIGNMENT,
    DTYPES,
    MAX_DIMENSIONS,
    MAX_EXTENT,
    MAX_FIELDS,
    MAX_NAME_CHARACTERS,
)


def why_bad_layout(header: bytes, payload: Any) -> str:
    """Return why ranks could not read a payload (a buffer) with this header, "" if they can.

    >>> why_bad_layout(msgpack.packb({"fields": [["text", "text", 3]]}), b"cat")
    ''
    >>> why_bad_layout(msgpack.packb({"fields": [["text", "text", 3]]}), b"cats")
    'its fields end at byte 3, its payload has 4'
    """
    view = memoryview(getattr(payload, "buffer", payload))
    view = view.cast("B") if view.nbytes else memoryview(b"")
    try:
        described = msgpack.unpackb(header)
        if not isinstance(described, dict) or list(described) != ["fields"]:
            return "its header describes no fields"
        return _walk(described["fields"], view)
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        return f"its header is none: {type(error).__name__} {error!s:.80}".rstrip()


def _walk(layout: Any, view: memoryview) -> str:
    """Walk the fields; return what is wrong with one. Raises what malformed entries make raise."""
    if not isinstance(layout, list) or len(layout) > MAX_FIELDS:
        return f"its header has not up to {MAX_FIELDS} fields"
    names, end = set(), 0
    for name, kind, *rest in layout:
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS or name in names:
            return "its header has a field without a name of its own"
        names.add(name)
        # A number is in the header itself.
        if kind == "number":
            if not _is_number(*rest):
                return f"its field {name:.80} is no number"
            continue
        nbytes = _size(kind, rest)
        if nbytes < 0:
            return f"its field {name:.80} has no size"
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + nbytes if nbytes else end
        if end > len(view):
            return f"its field {name:.80} ends at byte {end}, its payload has {len(view)}"
        if kind == "text" and nbytes:
            str(view[start:end], "utf-8", "surrogatepass")
    return "" if end == len(view) else f"its fields end at byte {end}, its payload has {len(view)}"


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def _size(kind: Any, rest: list[Any]) -> int:
    """Return the bytes of a field; -1 if its description is none."""
    if kind == "array":
        item, extents = DTYPES[rest[0]].itemsize, rest[1]
    else:
        item, extents = (1 if kind in ("text", "bytes") else -1), rest[:1]
    expected = 2 if kind == "array" else 1
    are_lengths = isinstance(extents, list) and all(
        type(each) is int and 0 <= each <= MAX_EXTENT for each in extents
    )
    if item < 0 or len(rest) != expected or not are_lengths or len(extents) > MAX_DIMENSIONS:
        return -1
    # What numpy could not address is no shape, even where it is empty.
    if item * math.prod(each or 1 for each in extents) >= 1 << 63:
        return -1
    size: int = item * math.prod(extents)
    return size
