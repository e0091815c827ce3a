"""Registers data formats by name, so that a description from another host can be opened.

A description is {"source": name, ...} with JSON values. The name is looked up among the built-in
formats and the entry points of the group `counterpoise.sources`; each is a class with

    from_spec(spec, root, allowed, cache) -> Source

which opens what the description says, reading below `root` and building only `allowed` transforms.
A new format is one such class and one entry.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .interface import Source
from .transform_registry import find_name

GROUP = "counterpoise.sources"
BUILT_IN = {"tar": "counterpoise.workers:TarDataset"}


def source_formats() -> dict[str, str]:
    """Return package.module:class of every registered format by its name; ours come first."""
    return {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN


def open_source(
    spec: Mapping[str, Any],
    root: str | Path | None,
    allowed: Iterable[str] = (),
    cache: str | Path | None = None,
) -> Source:
    """Open the source that a description names; ValueError for a format nobody registered.

    Raises what the format's `from_spec` raises, too.
    """
    name = spec.get("source")
    # Entry points are files outside the root: they are not even read where ours will do.
    formats = BUILT_IN if name in tuple(BUILT_IN) else source_formats()
    if not isinstance(name, str) or name not in formats:
        raise ValueError(
            f"no such source format: {name!r:.80}; registered are {', '.join(sorted(formats))} "
            f"(install a package with an entry point in {GROUP} for another)"
        )
    opened: Source = find_name(formats[name], "source format").from_spec(spec, root, allowed, cache)
    return opened
