"""The API reference: a Markdown page made from the docstrings of all public names.

Public is what a package lists in `__all__`. Each name is described once, under the shortest path
that it can be imported from.
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

# Packages in the order of the page, with what each is for.
PACKAGES = {
    "counterpoise": "What a training script imports: `import counterpoise as cp`.",
    "counterpoise.loader": "What runs in the trainer.",
    "counterpoise.workers": "Sources of samples, and transforms.",
    "counterpoise.workers.media": "Video and audio for transforms, also as `cp.media`.",
    "counterpoise.balancer": "Planning, without torch.",
    "counterpoise.sched": "Pipeline schedules, without torch.",
}
INTRODUCTION = """# API reference

*Written by `make docs` from the docstrings; do not edit.*

Everything here is public; everything else may change without notice.
"""
_MEMBERS = (staticmethod, classmethod, property)


def api_page() -> str:
    """Return the whole page."""
    parts, described = [INTRODUCTION], set[int]()
    for name, purpose in PACKAGES.items():
        package = importlib.import_module(name)
        parts.append(f"## {name}\n\n{purpose}\n")
        for public in sorted(package.__all__, key=str.lower):
            thing = getattr(package, public)
            # Modules have sections of their own, and a re-exported name was described before.
            if inspect.ismodule(thing) or id(thing) in described:
                continue
            described.add(id(thing))
            parts.append("\n\n".join(_described(public, thing)) + "\n")
    return "\n".join(parts)


def _described(name: str, thing: Any) -> Iterator[str]:
    """Yield the paragraphs about one public name."""
    yield f"### {name}"
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        yield f"`{name} = {thing!r}`"
        return
    yield f"```text\n{name}{_signature(thing)}\n```"
    yield from _text(thing)
    if inspect.isclass(thing):
        members = [f"- {line}" for line in _members(thing)]
        if members:
            yield "\n".join(members)


def _signature(thing: Any) -> str:
    """Return the parameters, one a line where they would not fit on one."""
    try:
        signature = inspect.signature(thing)
    except ValueError:  # a Protocol or a class of C
        return ""
    plain = [
        p.replace(annotation=_annotation(p.annotation), default=_default(p.default))
        for p in signature.parameters.values()
    ]
    line = str(inspect.Signature(plain))
    if len(line) <= 88:
        return line
    marked = str(inspect.Signature(plain)).removeprefix("(").removesuffix(")")
    return "(\n    " + ",\n    ".join(_split(marked)) + ",\n)"


def _annotation(hint: Any) -> Any:
    """Return a hint without the paths of modules, which only make signatures long."""
    if hint is inspect.Parameter.empty:
        return hint
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    plain = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)
    # newer numpys print NDArray[...] as it was written
    return _Plain(re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]", r"NDArray[\1]", plain))


def _default(value: Any) -> Any:
    """Return a default that prints the same on every machine: functions by their names."""
    return _Plain(value.__name__) if inspect.isfunction(value) else value


class _Plain(str):
    """Text that prints without quotes in a signature."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _split(parameters: str) -> list[str]:
    """Split a list of parameters at the commas outside brackets and quotes.

    >>> _split("a: dict[str, int] = {}, b='x, y'")
    ['a: dict[str, int] = {}', "b='x, y'"]
    """
    found, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(parameters):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(parameters[start:at].strip())
            start = at + 1
    return [*found, parameters[start:].strip()]


def _text(thing: Any) -> Iterator[str]:
    """Yield a docstring's paragraphs; examples and indented blocks become code."""
    text = inspect.getdoc(thing) or ""
    if is_dataclass(thing) and text.startswith(f"{getattr(thing, '__name__', '')}("):
        return  # the signature that dataclasses write where there is no docstring
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith(">>>"):
            yield f"```pycon\n{paragraph}\n```"
        elif all(line.startswith("    ") for line in paragraph.splitlines()) and paragraph:
            yield f"```text\n{inspect.cleandoc(paragraph)}\n```"
        elif paragraph:
            yield paragraph


def _members(kind: type[Any]) -> Iterator[str]:
    """Yield a line for each public method and property that the class itself defines."""
    own = {each.name for each in fields(kind)} if is_dataclass(kind) else set[str]()
    for name, member in vars(kind).items():
        # Fields of a dataclass are in its signature already.
        if name.startswith("_") or name in own:
            continue
        if not (inspect.isfunction(member) or isinstance(member, _MEMBERS)):
            continue
        first = (inspect.getdoc(getattr(kind, name)) or "").split("\n")[0]
        call = "" if isinstance(member, property) else "()"
        yield f"`{name}{call}`: {first}"
