"""Finds the fields of samples: the leaves of what they are made of, whatever it is nested in.

A field is a path: keys of mappings and names of attributes, positions in tuples, and None for every
item of a list. Samples need not be alike: what only some of them have is optional. Batches are
looked through in the same way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from .sizes import MOST_DEPTH, TILE_AXES, Kind, attributes, form_of, is_array, size_of

Step = str | int | None
KINDS: tuple[Kind, ...] = get_args(Kind)
# What a sample is called that is nothing but one leaf.
_WHOLE: Mapping[Kind, str] = {
    "numbers": "elements", "text": "text", "bytes": "bytes", "image": "pixels", "tiles": "tiles",
}  # fmt: skip
# Stacks of tiles by the name that they have in docs/batches.md.
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
        return ".".join(str(s) for s in self.path if s is not None) or _WHOLE[self.kind]

    @property
    def last(self) -> str:
        """The last name of the path, without positions: "input_ids" of "text.input_ids"."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), self.name)

    def size(self, sample: Any) -> int:
        """Return the number of elements that a sample has of it; ValueError where it has none.

        >>> SampleField(("a", None), "text").size({"a": ["xy", "z"]})
        3
        """
        found = self._size(sample, self.path)
        if found is not None:
            return found
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
            return size_of(value, self.kind)
        step, rest = path[0], path[1:]
        if step is not None:
            return self._size(part_at(value, step), rest)
        if not isinstance(value, list | tuple):
            return None
        sizes = [self._size(item, rest) for item in value]
        known = [size for size in sizes if size is not None]
        # Of items that have it in some cases only (image parts of a message), those count.
        return sum(known) if self.optional or len(known) == len(sizes) else None


def part_at(value: Any, step: str | int) -> Any:
    """Return what is below a value at a key, an attribute's name or a position; None: nothing.

    >>> part_at({"a": 5}, "a"), part_at([5, 6], 1), part_at("a", "b")
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
    return list(_below(values, (), False, items))


def _below(
    values: Sequence[Any], path: tuple[Step, ...], optional: bool, items: int | None
) -> Iterator[SampleField]:
    forms: dict[str, list[Any]] = {}
    for value in values:
        if value is not None:
            forms.setdefault(form_of(value), []).append(value)
    forms.pop("empty", None)
    # A value that is another form in some samples counts as missing there.
    missing = optional or len(forms) > 1 or any(value is None for value in values)
    if len(path) > MOST_DEPTH:
        return
    for form, some in forms.items():
        if form in KINDS:
            yield SampleField(path, _kind(form, some, path), missing)
        elif form in ("mapping", "record"):
            parts = [dict(v) if form == "mapping" else attributes(v) for v in some]
            for name in _names(parts):
                inner = [part.get(name) for part in parts]
                yield from _below(inner, (*path, name), missing, items)
        elif form == "sequence":
            yield from _in_sequence(some, path, missing, items)


def _in_sequence(
    values: Sequence[Any], path: tuple[Step, ...], optional: bool, items: int | None
) -> Iterator[SampleField]:
    if _is_of_positions(values, items):
        for place in range(len(values[0])):
            inner = [value[place] for value in values]
            yield from _below(inner, (*path, place), optional, items)
    else:
        inner = [item for value in values for item in value]
        yield from _below(inner, (*path, None), optional, items)


def _is_of_positions(values: Sequence[Any], items: int | None) -> bool:
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        return False
    if items is not None and lengths != {items}:
        return True
    at = [{form_of(v[place]) for v in values} - {"empty"} for place in range(min(lengths))]
    return isinstance(values[0], tuple) or any(forms != at[0] for forms in at)


def _kind(form: Any, values: Sequence[Any], path: tuple[Step, ...]) -> Kind:
    """Return a leaf's kind: "tiles" for stacks of tiles of one shape, under the name of those."""
    stacks = [v for v in values if is_array(v) and len(v.shape) == TILE_AXES]
    are_tiles = path[-1:] == (TILES,) and len(stacks) == len(values)
    alike = len({tuple(v.shape[1:]) for v in stacks}) == 1
    kind: Kind = "tiles" if are_tiles and alike else form
    return kind


def _names(parts: Sequence[Mapping[Any, Any]]) -> list[Any]:
    """Return the keys of mappings in their order; not those that begin with "__", as "__key__"."""
    seen = dict.fromkeys(name for part in parts for name in part)
    return [
        name
        for name in seen
        if type(name) is int or (isinstance(name, str) and not name.startswith("__"))
    ]
