"""Says what to write in place of an argument that a constructor does not have."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any


def explain_unknown(cls: type[Any], arguments: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """Return what to write in place of the first of a constructor's arguments that it lacks."""
    names = [*inspect.signature(cls).parameters]
    unknown = {name: value for name, value in arguments.items() if name not in names}
    first, homes = next(iter(unknown)), find_value_classes(cls)
    for argument, home in homes.items():
        moved = {name: value for name, value in unknown.items() if _has_field(home, name)}
        if moved:
            short = arguments.get(argument)
            form = _expression(home, moved, None if isinstance(short, home) else short)
            return f"{cls.__name__} has no argument {', '.join(moved)}: write {argument}={form}"
    places = _find_places(cls)
    near = get_close_matches(first.lower(), [*places, *words], 1)
    if near and near[0] in words:
        hint = f": write {words[near[0]]}"
    elif near:
        hint = f"; did you mean {near[0]}={places[near[0]]}?"
    else:
        hint = f"; it has {', '.join(names)}"
    return f"{cls.__name__} has no argument {first}{hint}"


def find_value_classes(cls: type[Any]) -> Mapping[str, type[Any]]:
    """Return the class of the value that an argument of a constructor may be, by the argument."""
    list_classes: Callable[[], Mapping[str, type[Any]]] = getattr(cls, "_value_classes", dict)
    return list_classes()


def _find_places(cls: type[Any], form: str = "") -> dict[str, str]:
    """Return the value that has each argument of a constructor, and of all values in it."""
    places = dict.fromkeys(inspect.signature(cls).parameters, form and f" of {form.format('...')}")
    for argument, home in find_value_classes(cls).items():
        inner = f"{argument}={home.__name__}({{}})"
        places = {**_find_places(home, form.format(inner) or inner), **places}
    return places


def _has_field(cls: type[Any], name: str) -> bool:
    """Return whether a value's constructor, or that of a value in it, has an argument."""
    inner = find_value_classes(cls).values()
    return name in inspect.signature(cls).parameters or any(_has_field(c, name) for c in inner)


def _expression(cls: type[Any], fields: Mapping[str, Any], short: object = None) -> str:
    """Return the expression of a value with these fields, the short form being its first one."""
    parameters = inspect.signature(cls).parameters
    shown = [] if short is None else [_show(short)]
    first = next(iter(parameters.values()))
    if short is None and first.name not in fields and first.default is first.empty:
        shown = ["..."]
    shown += [f"{name}={_show(value)}" for name, value in fields.items() if name in parameters]
    for argument, home in find_value_classes(cls).items():
        inner = {n: v for n, v in fields.items() if n not in parameters and _has_field(home, n)}
        if inner:
            shown.append(f"{argument}={_expression(home, inner)}")
    return f"{cls.__name__}({', '.join(shown)})"


def _show(value: object) -> str:
    """Return a value as it is written: functions and classes by name, others by repr."""
    name: str | None = getattr(value, "__name__", None)
    return name or f"{value!r:.40}"
