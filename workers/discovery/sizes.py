"""The kind of a value in a sample and its number of elements, without importing torch."""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["numbers", "text", "bytes", "image", "tiles"]
# A leaf's kind, or how a value is made of others: by key, by attribute, or by position; a number
# alone; a list without items, which may be of anything; and whatever is not looked into.
Form = Literal[
    "numbers", "text", "bytes", "image", "mapping", "record", "sequence", "number", "empty", "other"
]
# Deeper lists are not looked into: nobody means them, and a list may hold itself.
MOST_DEPTH = 16
TILE_AXES = 4


def form_of(value: object, depth: int = 0) -> Form:
    """Return what a value is; lists and tuples of numbers, of such lists too, are "numbers".

    >>> form_of([[1, 2], []]), form_of("abc"), form_of([b"a"]), form_of({}), form_of(7)
    ('numbers', 'text', 'sequence', 'mapping', 'number')
    """
    if isinstance(value, str):
        return "text"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(value, int | float | complex | np.generic):
        return "number"
    if isinstance(value, Mapping):
        return "mapping"
    if isinstance(value, list | tuple):
        return _form_of_items(value, depth)
    if is_array(value):
        return "numbers"
    if is_image(value):
        return "image"
    return "record" if attributes(value) else "other"


def _form_of_items(value: list[Any] | tuple[Any, ...], depth: int) -> Form:
    if hasattr(value, "_fields"):
        return "record"
    if not value:
        return "empty"
    if depth == MOST_DEPTH:
        return "other"
    if all(type(item) in (int, float) for item in value):
        return "numbers"  # what nearly all lists are: of a sample's tokens
    lists = {form_of(i, depth + 1) if isinstance(i, list | tuple) else None for i in value}
    if lists == {"empty"}:
        return "empty"
    nested = lists <= {"numbers", "empty"}
    plain = lists == {None} and all(form_of(item) == "number" for item in value)
    return "numbers" if nested or plain else "sequence"


def size_of(value: Any, kind: Kind) -> int | None:
    """Return the number of elements of a leaf; None where the value is of another kind.

    Numbers and arrays: elements. Text: characters. Bytes: bytes. Images: pixels, whatever their
    mode. Tiles: the first axis.

    >>> size_of([[1, 2], [3]], "numbers"), size_of("abc", "text"), size_of("abc", "bytes")
    (3, 3, None)
    >>> size_of(np.zeros((5, 3, 8, 8)), "tiles"), size_of([], "text")
    (5, 0)
    """
    # An empty list may be of any kind.
    if isinstance(value, list | tuple) and not value:
        return 0
    if kind == "text":
        return len(value) if isinstance(value, str) else None
    if kind == "bytes":
        return memoryview(value).nbytes if form_of(value) == "bytes" else None
    if kind == "image":
        return value.size[0] * value.size[1] if is_image(value) else None
    if kind == "tiles":
        shape = tuple(value.shape) if is_array(value) else ()
        return int(shape[0]) if len(shape) == TILE_AXES else None
    return _numbers_in(value, 0)


def _numbers_in(value: Any, depth: int) -> int | None:
    if isinstance(value, list | tuple):
        # The first item speaks for all: to look at every token of every sample would cost more.
        if isinstance(value[0], int | float | np.generic):
            return len(value)
        inner = [
            0 if isinstance(item, list | tuple) and not item else _numbers_in(item, depth + 1)
            for item in (value if depth < MOST_DEPTH else [None])
        ]
        known = [size for size in inner if size is not None]
        return sum(known) if len(known) == len(inner) else None
    if not is_array(value):
        return None
    count = getattr(value, "numel", None)
    return int(count()) if callable(count) else int(value.size)


def is_array(value: Any) -> bool:
    """Return whether a value is an array or tensor, of numpy, torch or another library."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)


def is_image(value: Any) -> bool:
    """Return whether a value is one of Pillow's images; Pillow is not imported for it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def attributes(value: Any) -> dict[str, Any]:
    """Return what a dataclass, a named tuple or an object of plain attributes is made of.

    >>> attributes(np.float32), attributes(len)
    ({}, {})
    """
    if isinstance(value, type) or callable(value):
        return {}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name, None) for each in fields(value)}
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    own = getattr(value, "__dict__", None)
    return {k: v for k, v in own.items() if k[0] != "_"} if isinstance(own, dict) else {}
