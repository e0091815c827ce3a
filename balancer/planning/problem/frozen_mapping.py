"""What frozen records share: an immutable mapping, and the expression that makes a record."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

V = TypeVar("V")


class FrozenMapping(Mapping[str, V]):
    """An immutable, hashable mapping; equal to any mapping of equal items.

    >>> FrozenMapping({"tiles": 9}) == {"tiles": 9}
    True
    >>> hash(FrozenMapping({"tiles": 9})) == hash(FrozenMapping({"tiles": 9}))
    True
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> V:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def expression(record: Any) -> str:
    """Return the expression that makes a frozen record; only what differs from its defaults."""
    changed = [
        f"{field.name}={getattr(record, field.name)!r}"
        for field in fields(record)
        if getattr(record, field.name) != field.default
    ]
    return f"{type(record).__name__}({', '.join(changed)})"
