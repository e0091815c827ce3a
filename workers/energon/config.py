"""Reads Energon's YAML and JSON files as plain data: nothing in them is imported or run.

Their sizes, depths and scalars are bounded before anything is built of them, and aliases are
refused: Energon does not follow them either, and a few lines of them can stand for gigabytes.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml  # comes with webdataset

from ..sources.file_patterns import MAX_NAMES, count_names, expand_braces
from ..sources.urls import is_url

MOST_BYTES = 64 << 20
LONGEST_SCALAR = 4096
DEEPEST = 32
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def file_error(path: Path, reason: str) -> ValueError:
    """Return the error about a file of Energon's that is damaged, or cannot be read here."""
    return ValueError(f"{path}: {reason}")


def resolve(folder: Path, name: object, root: Path | None, at: Path, leaves: bool = False) -> Path:
    """Return the path of a name in a file, `at`, that is relative to a folder.

    Raises ValueError where it is no name, leaves the folder (unless it `leaves`), or the root,
    links followed.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise file_error(at, f"a path is {name!r:.80}, needed is a text")
    if is_url(name):
        raise file_error(at, f"{name!r:.80} is no local path; copy the data, and write its path")
    path = Path(os.path.normpath(folder / name))
    if not leaves and not path.is_relative_to(folder):
        raise file_error(at, f"{name!r:.80} leaves the folder {folder}; name files below it")
    if root is not None and not path.resolve().is_relative_to(root.resolve()):
        raise file_error(at, f"{name!r:.80} leaves the root {root}; name files below it")
    return path


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a .yaml or .json file; ValueError where it has none."""
    if path.stat().st_size > MOST_BYTES:
        raise file_error(path, f"has {path.stat().st_size} bytes, allowed are {MOST_BYTES}")
    data = path.read_bytes()
    try:
        mapping = json.loads(data) if path.suffix == ".json" else _parse_yaml(data)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        # What the libraries say has several lines, with the place in the last one.
        raise file_error(path, f"cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping):
        raise file_error(path, "holds no mapping from names to values")
    return mapping


def _parse_yaml(data: bytes) -> Any:
    deep = 0
    for event in yaml.parse(data, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"*{event.anchor} is an alias: write what it stands for")
        deep += isinstance(event, yaml.CollectionStartEvent)
        deep -= isinstance(event, yaml.CollectionEndEvent)
        is_long = isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_SCALAR
        if deep > DEEPEST or is_long:
            excess = f"text of over {LONGEST_SCALAR} characters" if is_long else f"depth of {deep}"
            raise ValueError(f"line {event.start_mark.line + 1} has a {excess}")
    return yaml.load(data, Loader=LOADER)


def expand_patterns(path: Path, role: str, patterns: object) -> list[str]:
    """Return the names of a list of brace patterns, at most as many as one pattern may have."""
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise file_error(path, f"{role} is {patterns!r:.80}, needed is a list of texts")
    if sum(map(count_names, patterns)) > MAX_NAMES:
        raise file_error(path, f"{role} stands for over {MAX_NAMES} names")
    try:
        return [name for pattern in patterns for name in expand_braces(pattern)]
    except ValueError as error:
        raise file_error(path, f"{role}: {error}") from None
