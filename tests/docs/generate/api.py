"""The API reference, made from the docstrings of all public names.

Public is what a package lists in `__all__`. Each name is described once, under the shortest path
that it can be imported from: a class on a page of its own, the functions of a package together. The
site is built with these pages; in the repository only their index is kept, which leads to sources.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from tests.docs.generate.docstrings import escaped, to_markdown
from tests.docs.pages import DOCS, page_named
from tests.imports import ROOT

# Packages in the order of the pages, with what each is for.
PACKAGES = {
    "counterpoise": "What a training script imports: `import counterpoise as cp`.",
    "counterpoise.loader": "What runs in the trainer.",
    "counterpoise.adapters": "Frameworks: `cp.adapters`.",
    "counterpoise.workers": "Sources of samples, and transforms.",
    "counterpoise.media": "Video and audio for transforms: `cp.media`.",
    "counterpoise.fleet": "Workers on a cluster: `cp.fleet`.",
    "counterpoise.balancer": "Planning, without torch.",
    "counterpoise.sched": "Pipeline schedules, without torch.",
}
TITLE = "All names"
INTRODUCTION = """# API reference

Find every public class and function here. Everything else may change without notice.
"""
# A page as docstrings name it: "planning.md", "docs/guides/object-stores.md"
MENTION = re.compile(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+)\.md\b")
_MEMBERS = (staticmethod, classmethod, property)
_WIDTH = 88


@dataclass(frozen=True)
class Entry:
    """A public name: the package that offers it, and what it is."""

    package: str
    name: str
    thing: Any

    @property
    def is_class(self) -> bool:
        """Whether it has a page of its own."""
        return inspect.isclass(self.thing)

    @property
    def page(self) -> str:
        """The name of its page, below reference/api/, without .md."""
        return self.name if self.is_class else f"{self.package.split('.')[-1]}-functions"

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        first = (_docstring(self.thing) or "A constant").split("\n\n")[0].replace("\n", " ")
        return re.split(r"(?<=[.;])\s", first)[0].rstrip(".;:")

    @property
    def source(self) -> str:
        """The path of its source from the checkout's root."""
        if not hasattr(self.thing, "__module__"):
            folder = self.package.removeprefix("counterpoise").lstrip(".")
            return str(Path(folder, "__init__.py"))
        path = inspect.getsourcefile(inspect.unwrap(self.thing)) or ""
        return str(Path(path).resolve().relative_to(ROOT))


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return all public names, package by package; a name that is offered twice stands once."""
    found, described = [], set[int]()
    for name in PACKAGES:
        package = importlib.import_module("counterpoise")
        for part in name.split(".")[1:]:
            package = getattr(package, part)
        for public in sorted(package.__all__, key=str.lower):
            thing = getattr(package, public)
            if not inspect.ismodule(thing) and id(thing) not in described:
                described.add(id(thing))
                found.append(Entry(name, public, thing))
    return tuple(found)


def index_page(is_site: bool = False) -> str:
    """Return the list of all names: on the site with links to their pages, else to sources."""
    parts = [INTRODUCTION]
    for package, purpose in PACKAGES.items():
        parts.append(f"## {package}\n\n{purpose}\n\n| name | what it is |\n| -- | -- |")
        for entry in entries():
            if entry.package == package:
                page = f"api/{entry.page}.md" + ("" if entry.is_class else f"#{entry.name.lower()}")
                link = page if is_site else f"../../{entry.source}"
                parts.append(f"| [`{entry.name}`]({link}) | {escaped(entry.summary)} |")
        parts.append("")
    return "\n".join(parts)


def groups() -> dict[str, dict[str, str]]:
    """Return the pages of each package by their titles; that of its functions comes last."""
    found: dict[str, dict[str, str]] = {package: {} for package in PACKAGES}
    for entry in sorted(entries(), key=lambda entry: not entry.is_class):
        title = entry.name if entry.is_class else "Functions"
        found[entry.package][title] = entry.page
    return found


@functools.cache
def pages() -> dict[str, str]:
    """Return the page of every class and of every package's functions, by name."""
    found: dict[str, list[str]] = {}
    for entry in entries():
        if entry.is_class:
            found[entry.page] = [f"# {entry.name}", *_described(entry, "##")]
        else:
            heading = [f"# Functions of {entry.package}"]
            section = [f"## `{entry.name}`", *_described(entry, "###")]
            found.setdefault(entry.page, heading).extend(section)
    return {name: MENTION.sub(_link, "\n\n".join(parts)) + "\n" for name, parts in found.items()}


def _link(mention: re.Match[str]) -> str:
    """Return a page's name in a docstring as a link to the page."""
    page = page_named(Path(mention[1]).name).relative_to(DOCS)
    return f"[{page.stem}](../../{page})"


def _described(entry: Entry, heading: str) -> Iterator[str]:
    """Yield the paragraphs about one public name; members get headings of the level given."""
    thing = entry.thing
    if not callable(thing):
        yield f"```python\n{entry.name} = {thing!r}\n```"
        return
    yield f"`{entry.package}.{entry.name}` · [source](../../../{entry.source})"
    yield f"```python\n{entry.name}{_signature(thing)}\n```"
    yield to_markdown(_docstring(thing))
    if entry.is_class:
        yield from _members(thing, heading)


def _docstring(thing: Any) -> str:
    """Return a docstring; "" for what Python writes itself where there is none."""
    text = inspect.getdoc(thing) or "" if callable(thing) else ""
    is_made = is_dataclass(thing) and text.startswith(f"{getattr(thing, '__name__', '')}(")
    return "" if is_made else text


def _members(kind: type[Any], heading: str) -> Iterator[str]:
    """Yield each public method and property, also those that it has from classes of ours."""
    own = {each.name for each in fields(kind)} if is_dataclass(kind) else set[str]()
    told = set(own)
    for owner in kind.__mro__:
        # what it has from torch or the standard library is documented there
        members = vars(owner) if owner.__module__.startswith("counterpoise") else {}
        for name, member in members.items():
            if name.startswith("_") or name in told or not (
                inspect.isfunction(member) or isinstance(member, _MEMBERS)
            ):  # fmt: skip
                continue
            told.add(name)
            yield f"{heading} `{name}`"
            if isinstance(member, property):
                yield "*property*"
            else:
                yield f"```python\n{name}{_signature(getattr(kind, name), is_member=True)}\n```"
            yield to_markdown(inspect.getdoc(getattr(kind, name)) or "")


def _signature(thing: Any, is_member: bool = False) -> str:
    """Return the parameters, one a line where they would not fit on one."""
    try:
        signature = inspect.signature(thing)
    except ValueError:  # a Protocol or a class of C
        return ""
    plain = [
        each.replace(annotation=_annotation(each.annotation), default=_default(each.default))
        for each in signature.parameters.values()
        if not (is_member and each.name == "self")
    ]
    result = _annotation(signature.return_annotation)
    is_told = not inspect.isclass(thing) and result is not inspect.Signature.empty
    shown = inspect.Signature(
        plain, return_annotation=result if is_told else inspect.Signature.empty
    )
    if len(str(shown)) <= _WIDTH:
        return str(shown)
    lines, is_keyword_only = [], False
    for each in plain:
        if each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            lines.append("*")
        is_keyword_only |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        lines.append(str(each))
    arrow = f" -> {result}" if is_told else ""
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){arrow}"


def _annotation(hint: Any) -> Any:
    """Return a hint without the paths of modules, which only make signatures long."""
    if hint is inspect.Parameter.empty:
        return hint
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    plain = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])|~", "", text)
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
