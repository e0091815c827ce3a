"""Answers a name that is none of a few: which of them is nearest, or where it belongs."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type[Any])
# For an argument, the class of the value that it may be: {"balance": Balance}. Called when a wrong
# name is answered, so that nothing is imported before.
ValueClasses = Callable[[], Mapping[str, type[Any]]]


def check_name(option: str, value: object, names: Collection[str], more: str = "") -> None:
    """Raise ValueError for a value that is not among names; more: what else is allowed.

    >>> check_name("mode", "exactly", ("exact", "window"))
    Traceback (most recent call last):
    ValueError: mode is 'exactly', allowed are 'exact', 'window'; did you mean 'exact'?
    """
    if not isinstance(value, str) or value not in names:
        allowed = ", ".join(map(repr, names)) + more
        raise ValueError(
            f"{option} is {value!r:.80}, allowed are {allowed}{near_name(value, names)}"
        )


def near_name(value: object, names: Collection[str]) -> str:
    """Return a question for the name that a value is nearest to, nothing where none is near."""
    near = get_close_matches(str(value)[:80].lower(), names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def explain_arguments(
    value_classes: ValueClasses = dict, words: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Class], Class]:
    """Make a class answer a keyword that it does not have: TypeError says where it belongs.

    A decorator instead of `**arguments`, so that the signature stays exact for editors and mypy.
    value_classes: the classes of the values that arguments may be, in whose fields it is looked
    for, too. words: what to write for other words of the field.
    """

    def decorate(cls: Class) -> Class:
        init, known = cls.__init__, {*inspect.signature(cls).parameters}
        cls._value_classes = value_classes  # for unknown_arguments.py

        @functools.wraps(init)
        def checked(self: object, *args: Any, **kwargs: Any) -> None:
            if not kwargs.keys() <= known:
                from .unknown_arguments import explain_unknown  # here: it is rarely needed

                raise TypeError(explain_unknown(cls, kwargs, words))
            init(self, *args, **kwargs)

        cls.__init__ = checked
        return cls

    return decorate
