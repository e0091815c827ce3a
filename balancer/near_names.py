"""Refuses a value that is none of a few names, and says which of them is nearest."""

from collections.abc import Collection
from difflib import get_close_matches


def check_name(what: str, value: object, names: Collection[str], more: str = "") -> None:
    """Raise ValueError for a value that is not among names; more: what else is allowed.

    >>> check_name("mode", "exactly", ("exact", "window"))
    Traceback (most recent call last):
    ValueError: mode is 'exactly', allowed are 'exact', 'window'; did you mean 'exact'?
    """
    if not isinstance(value, str) or value not in names:
        allowed = ", ".join(map(repr, names)) + more
        raise ValueError(f"{what} is {value!r:.80}, allowed are {allowed}{near_name(value, names)}")


def near_name(value: object, names: Collection[str]) -> str:
    """Return a question for the name that a value is nearest to, nothing where none is near."""
    near = get_close_matches(str(value)[:80].lower(), names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
