"""Registers transforms and data formats by name: a worker on another host makes one from a spec.

A transform's spec is {"name": "package.module:thing", "args": {...}} with JSON arguments, which may
hold specs themselves (a transform's tokenizer). A class is made with the arguments; a function is
called with the raw sample and the arguments. Only names that the worker's operator registered are
looked up: the built-in ones, entry points of the group `counterpoise.transforms`, and those given
by `--allow`.

A source's description is {"source": name, ...} with JSON values. The name is looked up among the
built-in formats, the entry points of the group `counterpoise.sources`, and, as
package.module:class, what `--allow` names. A class with `from_spec(spec, root, allowed, cache)`
opens what the description says, reading below `root` and building only `allowed` transforms; of
another map-style data set the constructor is given the values. Where people name files, not
formats, `open_data` finds the format by MARKERS and EXTENSIONS of its class (see RecordDataset).
"""

import functools
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .file_patterns import Pattern, find_shards, named, resolved
from .interface import Source
from .plain import as_source
from .urls import is_url

TRANSFORM_GROUP = "counterpoise.transforms"
TRANSFORMS = ("counterpoise.workers:VisionLanguage", "counterpoise.workers:ByteTokenizer")
# Ours by a public name too, but it reads folders that a job names: the operator must allow it.
NAMED = (*TRANSFORMS, "counterpoise:HFProcessor")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def registered(allow: Iterable[str] = ()) -> tuple[str, ...]:
    """Return all names that may be used; ValueError for one that is not package.module:thing."""
    names = tuple(allow)
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a transform's name; write package.module:function")
    plugins = sorted(point.value for point in entry_points(group=TRANSFORM_GROUP))
    return (*TRANSFORMS, *plugins, *names)


def build(spec: Any, allowed: Iterable[str]) -> Any:
    """Return the transform that a spec names; `allowed` are the names of `registered()`.

    >>> build({"name": TRANSFORMS[1], "args": {}}, TRANSFORMS)("a")
    [97]
    """
    names = tuple(allowed)
    if not is_spec(spec):
        raise ValueError(f"a transform is given as name and args, got {spec!r:.200}")
    if spec["name"] not in names:
        raise ValueError(
            f"no such transform: {spec['name']!r}; registered are {', '.join(names)} "
            "(allow another by --allow package.module:function)"
        )
    arguments = {
        key: build(value, names) if is_spec(value) else value for key, value in spec["args"].items()
    }
    transform = import_named(spec["name"])
    if inspect.isclass(transform):
        try:
            return transform(**arguments)
        except TypeError as error:
            raise ValueError(f"{spec['name']} does not take {sorted(arguments)}: {error}") from None
    return functools.partial(transform, **arguments) if arguments else transform


def is_spec(value: Any) -> bool:
    """Return whether a value has the form {"name": str, "args": {str: ...}}."""
    return (
        isinstance(value, Mapping)
        and set(value) == {"name", "args"}
        and isinstance(value["name"], str)
        and isinstance(value["args"], Mapping)
        and all(isinstance(key, str) for key in value["args"])
    )


def make_spec(transform: Any) -> dict[str, Any]:
    """Return the spec of a transform or tokenizer; ValueError where it has no importable name."""
    offered = getattr(transform, "spec", None)
    if callable(offered) and not inspect.isclass(transform):
        spec: dict[str, Any] = offered()
        return spec
    if isinstance(transform, functools.partial) and not transform.args:
        return {"name": find_import_name(transform.func), "args": dict(transform.keywords)}
    return {"name": find_import_name(transform), "args": {}}


def find_import_name(target: Any) -> str:
    """Return package.module:name of a function or class; of our own ones the public name.

    >>> find_import_name(is_spec)
    'counterpoise.workers.sources.registry:is_spec'
    """
    for public in NAMED:
        # A class keeps its public name wherever its module lies, since the name is on the wire.
        if (
            public.endswith(f":{getattr(target, '__qualname__', '')}")
            and import_named(public) is target
        ):
            return public
    name = f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"
    if not NAME.fullmatch(name) or name.startswith("__main__:"):
        raise ValueError(
            f"{target!r:.100} cannot be named for a remote worker; define it at the top of a "
            "module that the worker can import (no lambda, not in __main__)"
        )
    return name


def import_named(name: str, kind: str = "transform") -> Any:
    """Import what package.module:name names; ValueError where that is missing or not callable."""
    module, _, attributes = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            target = getattr(target, attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no such {kind}: {name!r} cannot be imported here: {error}") from error
    if not callable(target):
        raise ValueError(f"no such {kind}: {name!r} is a {type(target).__name__}, not callable")
    return target


SOURCE_GROUP = "counterpoise.sources"
# In a folder with files of several formats those of the first are meant.
FORMATS = {
    "tar": "counterpoise.workers:TarDataset",
    "hf": "counterpoise.workers:HFDataset",
    "parquet": "counterpoise.workers:ParquetDataset",
    "jsonl": "counterpoise.workers:JsonlDataset",
    "energon": "counterpoise.workers:EnergonDataset",
    "mds": "counterpoise.workers:MDSDataset",
    "mixture": "counterpoise.workers.mixture.rows:MixtureRows",
    "selection": "counterpoise.workers.selection.selection:Selection",
}


def source_formats() -> dict[str, str]:
    """Return package.module:class of every registered format by its name; ours come first."""
    plugins = {point.name: point.value for point in entry_points(group=SOURCE_GROUP)}
    return FORMATS | {name: path for name, path in plugins.items() if name not in FORMATS}


def open_source(
    spec: Mapping[str, Any],
    root: str | Path | None,
    allowed: Iterable[str] = (),
    cache: str | Path | None = None,
) -> Source:
    """Open the source that a description names; ValueError for one of no known format.

    One without "source" is of the format that its pattern's files have. Raises what the format's
    `from_spec` raises, too.
    """
    if "source" not in spec and isinstance(spec.get("pattern"), str | list):
        spec = {"source": find_format(spec["pattern"], root), **spec}
    name, allowed = spec.get("source"), tuple(allowed)
    # Entry points are files outside the root: they are not even read where others will do.
    formats = FORMATS | {name: name for name in allowed}
    formats = formats if name in tuple(formats) else source_formats()
    if not isinstance(name, str) or name not in formats:
        raise ValueError(
            f"no such source format: {name!r:.80}; registered are {', '.join(sorted(formats))} "
            f"(install a package with an entry point in {SOURCE_GROUP} for another, or --allow "
            "package.module:class)"
        )
    kind = import_named(formats[name], "source format")
    if hasattr(kind, "from_spec"):
        opened: Source = kind.from_spec(spec, root, allowed, cache)
        return opened
    # A map-style data set gets what is told.
    if spec.get("transform") is not None:
        raise ValueError(f"{name} has no from_spec, and takes no transform: give None")
    arguments = {key: value for key, value in spec.items() if key not in ("source", "transform")}
    try:
        return as_source(kind(**{key: value for key, value in arguments.items() if value != []}))
    except TypeError as error:
        raise ValueError(f"{name} does not take {sorted(arguments)}: {error}") from None


def open_data(
    pattern: Pattern | Mapping[str, Any],
    transform: Any = None,
    root: str | Path | None = None,
    allowed: Iterable[str] = (),
    **settings: Any,
) -> Any:
    """Open what a pattern or a description names, whatever its format; as the format's class does.

    settings: more arguments of that class, as cache= and cost=. Raises ValueError for a format that
    is not known, and what the class raises.
    """
    if isinstance(pattern, Mapping):
        return open_source(pattern, root, allowed, settings.get("cache"))
    return find_format_class(pattern, root)(pattern, transform=transform, root=root, **settings)


def find_format_class(pattern: Pattern, root: str | Path | None = None) -> Any:
    """Return the class that reads a pattern's files; ValueError where there is none."""
    return import_named(source_formats()[find_format(pattern, root)], "source format")


def find_format(pattern: Pattern, root: str | Path | None = None) -> str:
    """Return the name of the format of a pattern's files; ValueError where it is not one."""
    text_by_format = {_find_one_format(text, root): text for text in named(pattern)}
    if len(text_by_format) > 1:
        raise ValueError(
            f"files of several formats: {text_by_format}; make a source of each, and join them by "
            "torch.utils.data.ConcatDataset or counterpoise.Mixture"
        )
    return next(iter(text_by_format))


def _find_one_format(text: str, root: str | Path | None) -> str:
    path = resolved(Path(text), root)
    kinds = {
        name: import_named(class_path, "source format") for name, class_path in FORMATS.items()
    }
    format_name = _match_format(path, text, root, kinds)
    if not format_name:  # entry points are not even read where ours will do
        kinds = {name: import_named(class_path) for name, class_path in source_formats().items()}
        format_name = _match_format(path, text, root, kinds)
    if not format_name:
        signs = {name: _signs(kind) for name, kind in kinds.items()}
        known = ", ".join(f"{name} ({sign})" for name, sign in signs.items() if sign)
        raise ValueError(f"{text!r:.200} has no data of a known format; known are {known}")
    return format_name


def _match_format(path: Path, text: str, root: str | Path | None, kinds: Mapping[str, Any]) -> str:
    """Return the name of the format of a folder or file; empty where it is of none of them."""
    if path.is_dir():
        names = [file.name for file in path.iterdir()]
        for name, kind in kinds.items():
            if any(os.path.lexists(path / marker) for marker in getattr(kind, "MARKERS", ())):
                return name
    elif any(_is_named(path.name, kind) for kind in kinds.values()):
        names = [path.name]
    elif is_url(text):
        return "tar"  # shards are all that is read from stores
    else:
        names = [file.name for file in find_shards(text, root)]
    fitting = (n for n, kind in kinds.items() if any(_is_named(name, kind) for name in names))
    return next(fitting, "")


def _is_named(name: str, kind: Any) -> bool:
    return name.lower().endswith(tuple(getattr(kind, "EXTENSIONS", ()) or "/"))


def _signs(kind: Any) -> str:
    extensions = (f"*{extension}" for extension in getattr(kind, "EXTENSIONS", ()))
    return " ".join((*extensions, *getattr(kind, "MARKERS", ())))
