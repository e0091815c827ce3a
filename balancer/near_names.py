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
_VALUE_CLASSES: dict[type[Any], ValueClasses] = {}


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


def explain_arguments(
    value_classes: ValueClasses = dict, words: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Class], Class]:
    """Make a class answer a keyword that it does not have: TypeError says where it belongs.

    A decorator instead of `**arguments`, so that the signature stays exact for editors and mypy.
    value_classes: the classes of the values that arguments may be, in whose fields it is looked
    for, too. words: what to write for other words of the field.
    """

    def decorate(cls: Class) -> Class:
        init, names = cls.__init__, [*inspect.signature(cls).parameters]
        _VALUE_CLASSES[cls] = value_classes

        @functools.wraps(init)
        def checked(self: object, *args: Any, **kwargs: Any) -> None:
            if not kwargs.keys() <= known:
                raise TypeError(_explain_unknown(cls, names, kwargs, words))
            init(self, *args, **kwargs)

        known = {*names}
        cls.__init__ = checked
        return cls

    return decorate


def _explain_unknown(
    cls: type[Any], names: list[str], arguments: Mapping[str, Any], words: Mapping[str, str]
) -> str:
    """Return what to write in place of the first of a constructor's arguments that it lacks."""
    unknown = {name: value for name, value in arguments.items() if name not in names}
    first, homes = next(iter(unknown)), _VALUE_CLASSES[cls]()
    for argument, home in homes.items():
        moved = {name: value for name, value in unknown.items() if _has_field(home, name)}
        if moved:
            short = arguments.get(argument)
            form = _expression(home, moved, None if isinstance(short, home) else short)
            return f"{cls.__name__} has no argument {', '.join(moved)}: write {argument}={form}"
    places = dict.fromkeys(names, "")
    for argument, home in homes.items():
        places |= {
            name: f" of {argument}={home.__name__}(...)"
            for name in inspect.signature(home).parameters
            if name not in places
        }
    near = get_close_matches(first.lower(), [*places, *words], 1)
    if near and near[0] in words:
        hint = f": write {words[near[0]]}"
    elif near:
        hint = f"; did you mean {near[0]}={places[near[0]]}?"
    else:
        hint = f"; it has {', '.join(names)}"
    return f"{cls.__name__} has no argument {first}{hint}"


def _has_field(cls: type[Any], name: str) -> bool:
    """Return whether a value's constructor, or that of a value in it, has an argument."""
    inner = _VALUE_CLASSES[cls]().values() if cls in _VALUE_CLASSES else ()
    return name in inspect.signature(cls).parameters or any(_has_field(c, name) for c in inner)


def _expression(cls: type[Any], fields: Mapping[str, Any], short: object = None) -> str:
    """Return the expression of a value with these fields, the short form being its first one."""
    parameters = inspect.signature(cls).parameters
    shown = [] if short is None else [f"{short!r:.40}"]
    first = next(iter(parameters.values()))
    if short is None and first.name not in fields and first.default is first.empty:
        shown = ["..."]
    shown += [f"{name}={value!r:.40}" for name, value in fields.items() if name in parameters]
    for argument, home in (_VALUE_CLASSES[cls]() if cls in _VALUE_CLASSES else {}).items():
        inner = {n: v for n, v in fields.items() if n not in parameters and _has_field(home, n)}
        if inner:
            shown.append(f"{argument}={_expression(home, inner)}")
    return f"{cls.__name__}({', '.join(shown)})"
