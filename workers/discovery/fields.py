"""Finds the fields of samples: the leaves of what they are made of, whatever it is nested in.

A field is a path: keys of mappings and names of attributes, positions in tuples, and None for every
item of a list. Samples need not be alike: what only some of them have is optional. Batches are
looked through in the same way.

Kinds and sizes of values are told without importing torch.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

import numpy as np

Kind = Literal["numbers", "text", "bytes", "image", "tiles"]
# A leaf's kind, or how a value is made of others: by key, by attribute, or by position; a number
# alone; a list without items, which may be of anything; and whatever is not looked into.
Form = Literal[
    "numbers", "text", "bytes", "image", "mapping", "record", "sequence", "number", "empty", "other"
]
# Deeper lists are not looked into: a list may hold itself.
MOST_DEPTH = 16
TILE_AXES = 4


def find_form(value: object, depth: int = 0) -> Form:
    """Return what a value is; lists and tuples of numbers, of such lists too, are "numbers".

    >>> find_form([[1, 2], []]), find_form("abc"), find_form([b"a"]), find_form({}), find_form(7)
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
        return _find_form_of_items(value, depth)
    if find_shape(value) is not None:
        return "numbers"
    if is_image(value):
        return "image"
    return "record" if attributes(value) else "other"


def _find_form_of_items(value: list[Any] | tuple[Any, ...], depth: int) -> Form:
    if hasattr(value, "_fields"):
        return "record"
    if not value:
        return "empty"
    if depth == MOST_DEPTH:
        return "other"
    if all(type(item) in (int, float) for item in value):
        return "numbers"  # what nearly all lists are: of a sample's tokens
    lists = {find_form(i, depth + 1) if isinstance(i, list | tuple) else None for i in value}
    if lists == {"empty"}:
        return "empty"
    nested = lists <= {"numbers", "empty"}
    plain = lists == {None} and all(find_form(item) == "number" for item in value)
    return "numbers" if nested or plain else "sequence"


def measure_size(value: Any, kind: Kind) -> int | None:
    """Return the number of elements of a leaf; None where the value is of another kind.

    Numbers and arrays: elements. Text: characters. Bytes: bytes. Images: pixels, whatever their
    mode. Tiles: the first axis.

    >>> measure_size([[1, 2], [3]], "numbers"), measure_size("abc", "bytes")
    (3, None)
    >>> measure_size(np.zeros((5, 3, 8, 8)), "tiles"), measure_size([], "text")
    (5, 0)
    """
    # An empty list may be of any kind.
    if isinstance(value, list | tuple) and not value:
        return 0
    if kind == "text":
        return len(value) if isinstance(value, str) else None
    if kind == "bytes":
        return memoryview(value).nbytes if find_form(value) == "bytes" else None
    if kind == "image":
        return value.size[0] * value.size[1] if is_image(value) else None
    if kind == "tiles":
        shape = find_shape(value) or ()
        return int(shape[0]) if len(shape) == TILE_AXES else None
    return _count_numbers(value, 0)


def _count_numbers(value: Any, depth: int) -> int | None:
    if isinstance(value, list | tuple):
        # The first item speaks for all: to look at every token of every sample would cost more.
        if isinstance(value[0], int | float | np.generic):
            return len(value)
        inner = [
            0 if isinstance(item, list | tuple) and not item else _count_numbers(item, depth + 1)
            for item in (value if depth < MOST_DEPTH else [None])
        ]
        known = [size for size in inner if size is not None]
        return sum(known) if len(known) == len(inner) else None
    if find_shape(value) is None:
        return None
    count = getattr(value, "numel", None)
    return int(count()) if callable(count) else int(value.size)


def find_shape(value: Any) -> tuple[Any, ...] | None:
    """Return the shape of an array or tensor, of numpy, torch or another library; None: no array.

    >>> find_shape(np.zeros((2, 3))), find_shape([1]), find_shape(np.float32(1))
    ((2, 3), None, None)
    """
    if isinstance(value, np.generic) or not hasattr(value, "dtype"):
        return None
    try:
        return tuple(value.shape) if hasattr(value, "shape") else None
    except RuntimeError:  # torch's nested tensors have none, unless they are jagged
        return ()


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
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    held = getattr(value, "__dict__", None)
    return {k: v for k, v in held.items() if k[0] != "_"} if isinstance(held, dict) else {}


Step = str | int | None
KINDS: tuple[Kind, ...] = get_args(Kind)
# What a sample is called that is nothing but one leaf.
WHOLE: Mapping[Kind, str] = {
    "numbers": "elements", "text": "text", "bytes": "bytes", "image": "pixels", "tiles": "tiles",
}  # fmt: skip
# Stacks of tiles by the name that they have in docs/reference/batch-fields.md.
TILES = "pixel_values"


@dataclass(frozen=True, slots=True)
class SampleField:
    """A field of samples: where it is, of what kind, and whether some samples do without."""

    path: tuple[Step, ...]
    kind: Kind
    optional: bool = False

    @property
    def name(self) -> str:
        """The path as users write it.

        >>> SampleField(("messages", None, "content"), "text").name
        'messages.content'
        """
        return ".".join(str(s) for s in self.path if s is not None) or WHOLE[self.kind]

    @property
    def last(self) -> str:
        """The last name of the path, without positions: "input_ids" of "text.input_ids"."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), self.name)

    @property
    def is_text(self) -> bool:
        """Whether it is measured in characters or bytes."""
        return self.kind in ("text", "bytes")

    def size(self, sample: Any) -> int:
        """Return the number of elements that a sample has of it; ValueError where it has none.

        >>> SampleField(("a", None), "text").size({"a": ["xy", "z"]})
        3
        """
        size = self._size(sample, self.path)
        if size is not None:
            return size
        if self.optional:
            return 0
        raise ValueError(
            f"the field {self.name!r} is missing, or is no {self.kind}, but the first samples all "
            "have it, and it was found to be what samples cost: give every sample this field, or "
            "say what samples cost with cost="
        )

    def _size(self, value: Any, path: tuple[Step, ...]) -> int | None:
        if value is None:
            return None
        if not path:
            return measure_size(value, self.kind)
        step, path_below = path[0], path[1:]
        if step is not None:
            return self._size(find_child(value, step), path_below)
        if not isinstance(value, list | tuple):
            return None
        sizes = [self._size(item, path_below) for item in value]
        known = [size for size in sizes if size is not None]
        # Of items that have it in some cases only (image parts of a message), those count.
        return sum(known) if self.optional or len(known) == len(sizes) else None


def find_child(value: Any, step: str | int) -> Any:
    """Return what is below a value at a key, an attribute's name or a position; None: nothing.

    >>> find_child({"a": 5}, "a"), find_child([5, 6], 1), find_child("a", "b")
    (5, 6, None)
    """
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(step, str):
        return attributes(value).get(step)
    if isinstance(value, list | tuple) and step < len(value):
        return value[step]
    return None


def find_fields(values: Sequence[Any], items: int | None = None) -> list[SampleField]:
    """Return the fields of samples, or of batches, in the order in which they are in them.

    Lists are of items, and their sizes add up; tuples of one length, and lists of one length whose
    items are of different kinds, are of positions. items: where values are batches their number of
    samples; lists of any other length are of positions too.

    >>> [each.name for each in find_fields([{"a": "x", "b": [1, 2], "n": 5}, {"a": "yz"}])]
    ['a', 'b']
    >>> [each.name for each in find_fields([([1, 2], "label"), ([3], "other")])]
    ['0', '1']
    """
    return list(_yield_fields(values, (), False, items))


def _yield_fields(
    values: Sequence[Any], path: tuple[Step, ...], optional: bool, items: int | None
) -> Iterator[SampleField]:
    forms: dict[str, list[Any]] = {}
    for value in values:
        if value is not None:
            forms.setdefault(find_form(value), []).append(value)
    has_empty = forms.pop("empty", None) is not None
    # A value that is another form in some samples counts as missing there.
    missing = optional or len(forms) > 1 or any(value is None for value in values)
    if len(path) > MOST_DEPTH:
        return
    for form, same_form in forms.items():
        if form in KINDS:
            yield SampleField(path, _find_kind(form, same_form, path), missing)
        elif form in ("mapping", "record"):
            parts = [dict(v) if form == "mapping" else attributes(v) for v in same_form]
            for name in _collect_keys(parts):
                inner = [part.get(name) for part in parts]
                yield from _yield_fields(inner, (*path, name), missing, items)
        elif form == "sequence":
            yield from _yield_sequence_fields(same_form, path, missing, items, has_empty)


def _yield_sequence_fields(
    values: Sequence[Any],
    path: tuple[Step, ...],
    optional: bool,
    items: int | None,
    has_empty: bool,
) -> Iterator[SampleField]:
    if _are_positional(values, items):
        optional = optional or has_empty  # of an empty list the places are missing
        for place in range(len(values[0])):
            inner = [value[place] for value in values]
            yield from _yield_fields(inner, (*path, place), optional, items)
    else:
        inner = [item for value in values for item in value]
        yield from _yield_fields(inner, (*path, None), optional, items)


def _are_positional(values: Sequence[Any], items: int | None) -> bool:
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        return False
    if items is not None and lengths != {items}:
        return True
    at = [{find_form(v[place]) for v in values} - {"empty"} for place in range(min(lengths))]
    return isinstance(values[0], tuple) or any(forms != at[0] for forms in at)


def _find_kind(form: Any, values: Sequence[Any], path: tuple[Step, ...]) -> Kind:
    """Return a leaf's kind: "tiles" for stacks of tiles of one shape, under the name of those."""
    stacks = [shape for shape in map(find_shape, values) if shape and len(shape) == TILE_AXES]
    are_tiles = path[-1:] == (TILES,) and len(stacks) == len(values)
    alike = all(shape[1:] == stacks[0][1:] for shape in stacks)
    return "tiles" if are_tiles and alike else form


def _collect_keys(parts: Sequence[Mapping[Any, Any]]) -> list[Any]:
    """Return the keys of mappings in their order; not those that begin with "__", as "__key__"."""
    seen = dict.fromkeys(name for part in parts for name in part)
    return [
        name
        for name in seen
        if type(name) is int or (isinstance(name, str) and not name.startswith("__"))
    ]
