"""Reads what a prepared folder says of itself, in `.nv-meta`: shards, splits, fields.

    dataset.yaml   sample_type, and either field_map or sample_loader (a function in a file, which
                   is never run); or __class__: CrudeWebdataset, whose members are used as they are
    split.yaml     split_parts: names of shards by split; exclude: SHARD, or SHARD/KEY
    .info.json     shard_counts: the samples of each shard (.info.yaml in older folders)

`index.sqlite` and the `.idx` files have places of samples; the tar source has its own index.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import ConfigError, expanded, inside, read_mapping, texts

META = ".nv-meta"
INFO = (".info.json", ".info.yaml")
OPTION = re.compile(r"([^\[\],]+)((?:\[[^\[\]]+\])*)")
Access = tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A split of a prepared folder.

    counts: the samples of its shards, by path, in its order. excluded: "SHARD/KEY" of samples that
    are left out. fields: for each field the places of members that it may be, as ("json", "text").
    code: the function that would make samples, "" where fields do.
    """

    counts: Mapping[Path, int]
    excluded: frozenset[str]
    fields: Mapping[str, tuple[Access, ...]]
    code: str


def read_folder(
    folder: Path,
    split: str,
    root: Path | None = None,
    dataset_config: str = "dataset.yaml",
    split_config: str = "split.yaml",
) -> Folder:
    """Return what the files in `.nv-meta` say of a split; ConfigError names the file at fault."""
    meta = folder / META
    info = _existing(folder, INFO, root)
    splits = _existing(folder, _either(split_config), root)
    counts = read_mapping(info).get("shard_counts")
    if not isinstance(counts, dict) or not all(type(each) is int for each in counts.values()):
        raise ConfigError(info, "has no shard_counts, samples by shard: run `energon prepare`")
    names, excluded = _split(splits, split)
    shards = dict[Path, int]()
    for name in names:
        path = inside(folder, name, root, splits)
        if name not in counts:
            raise ConfigError(splits, f"{name!r:.80} is not in {info.name}: run `energon prepare`")
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path} (from {splits}); check the folder")
        shards[path] = counts[name]
    about = inside(meta, dataset_config, root, meta)
    config = read_mapping(about) if about.is_file() else {}
    if not config and dataset_config != "dataset.yaml":
        raise FileNotFoundError(f"no such file: {about}; check dataset_config")
    return Folder(shards, excluded, _fields(about, config), _code(config))


def is_prepared(folder: Path) -> bool:
    """Return whether this is a folder that `energon prepare` has been through."""
    return any((folder / META / name).is_file() for name in INFO)


def _either(name: str) -> tuple[str, ...]:
    return ("split.yaml", "split.json") if name == "split.yaml" else (name,)


def _existing(folder: Path, names: tuple[str, ...], root: Path | None) -> Path:
    for name in names:
        path = inside(folder / META, name, root, folder)
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{folder} has no {META}/{names[0]}: run `energon prepare` there, or read its tars with "
        "cp.TarDataset"
    )


def _split(path: Path, split: str) -> tuple[list[str], frozenset[str]]:
    """Return the names of a split's shards, in order, and of the samples that are left out."""
    found = read_mapping(path)
    parts = found.get("split_parts")
    if not isinstance(parts, dict) or split not in parts:
        have = ", ".join(map(str, parts)) if isinstance(parts, dict) else "none"
        raise ConfigError(path, f"there is no split {split!r:.80}, splits are: {have}")
    excluded = set(expanded(path, texts(path, "exclude", found.get("exclude", []))))
    named = dict.fromkeys(expanded(path, texts(path, split, parts[split])))
    names = [name for name in named if name not in excluded]
    if not names:
        raise ConfigError(path, f"the split {split!r} has no shards")
    return names, frozenset(excluded - named.keys())


def _code(config: Mapping[str, Any]) -> str:
    loader = config.get("sample_loader")
    return "" if loader is None else f"{loader!s:.80}"


def _fields(path: Path, config: Mapping[str, Any]) -> dict[str, tuple[Access, ...]]:
    found = config.get("field_map") or {}
    if not isinstance(found, dict):
        raise ConfigError(path, f"field_map is {found!r:.80}, needed are members by field")
    return {str(name): _accesses(path, name, text) for name, text in found.items()}


def _accesses(path: Path, name: str, text: object) -> tuple[Access, ...]:
    matches = [OPTION.fullmatch(option) for option in str(text).split(",")]
    if not all(matches):
        raise ConfigError(
            path, f"field {name!r:.80} is {text!r:.80}: write jpg, or jpg,png, or json[text][0]"
        )
    return tuple((m[1].lower(), *re.findall(r"\[([^\[\]]+)\]", m[2])) for m in matches if m)


def field_value(raw: Mapping[str, Any], options: tuple[Access, ...]) -> Any:
    """Return the first of the places that a sample has; KeyError where it has none.

    >>> field_value({"json": {"turns": ["hi"]}}, (("txt",), ("json", "turns", "0")))
    'hi'
    """
    for option in options:
        value: Any = raw
        try:
            for step in option:
                value = value[int(step) if isinstance(value, list) else step]
            return value
        except (KeyError, IndexError, ValueError, TypeError):
            continue
    raise KeyError(options)
