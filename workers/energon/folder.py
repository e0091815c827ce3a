"""Reads what a prepared folder says of itself, in `.nv-meta`: shards, splits, fields.

    dataset.yaml   sample_type, and either field_map or sample_loader (a function in a file, which
                   is never run); or __class__: CrudeWebdataset, whose members are used as they are
    split.yaml     split_parts: names of shards by split; exclude: SHARD, or SHARD/KEY
    .info.json     shard_counts: the samples of each shard (.info.yaml in older folders)

`index.sqlite` and the `.idx` files have places of samples; the tar source has its own index.
"""

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from .config import expand_patterns, file_error, read_mapping, resolve

META = ".nv-meta"
INFO = (".info.json", ".info.yaml")
DATASET, SPLIT = "dataset.yaml", "split.yaml"
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


@dataclass(frozen=True, slots=True)
class Subset:
    """A part of a split: samples first to last (None: the end), of these begin to end, in 0..1.

    >>> Subset.parse([100, "end"]).within(Subset.parse(["0%", "50%"])).bounds(300)
    (100, 200)
    """

    first: int = 0
    last: int | None = None
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def parse(cls, bounds: Any) -> "Subset":
        """Return the subset of ["25%", "75%"], [0, 100], [100, "end"], [], or of its fields."""
        try:
            match bounds:
                case [str(begin), str(end)] if begin[-1:] == end[-1:] == "%":
                    subset = cls(0, None, float(begin[:-1]) / 100, float(end[:-1]) / 100)
                case [first, last]:
                    subset = cls(first, None if last == "end" else last)
                case [] | [_, _, _, _]:  # as a description has it
                    subset = cls(*bounds)
                case _:
                    raise TypeError
            is_right = 0 <= subset.begin <= subset.end <= 1 and subset.first >= 0
            if not is_right or not {type(subset.first), type(subset.last)} <= {int, type(None)}:
                raise TypeError
        except (TypeError, ValueError):
            raise ValueError(
                f"a subset is {bounds!r:.80}: give ['25%', '75%'], two numbers of samples, or "
                "[100, 'end']"
            ) from None
        return subset

    @property
    def is_absolute(self) -> bool:
        """Return whether it counts samples: only a folder's own may."""
        return self.first > 0 or self.last is not None

    def within(self, outer: "Subset") -> "Subset":
        """Return the part of this one that `outer`, a share, leaves."""
        if outer.is_absolute:
            raise ValueError(f"the subset is {astuple(outer)[:2]}: a range is only of a folder")
        whole = self.end - self.begin
        begin, end = self.begin + outer.begin * whole, self.begin + outer.end * whole
        return Subset(self.first, self.last, begin, end)

    def bounds(self, samples: int, name: str = "it") -> tuple[int, int]:
        """Return the first sample of `samples` and the one after the last."""
        last = samples if self.last is None else self.last
        if not self.first <= last <= samples:
            raise ValueError(f"the subset is {self.first} to {last}, and {name} has {samples}")
        left = last - self.first
        return self.first + int(left * self.begin), self.first + int(left * self.end)


def read_folder(
    folder: Path,
    split: str,
    root: Path | None = None,
    dataset_config: str = DATASET,
    split_config: str = SPLIT,
) -> Folder:
    """Return what the files in `.nv-meta` say of a split; ValueError names the file at fault."""
    info = _find_config(folder, root, *INFO)
    counts = read_mapping(info).get("shard_counts")
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise file_error(info, "has no shard_counts, samples by shard: run `energon prepare`")
    path = _find_config(folder, root, split_config, *(["split.json"] * (split_config == SPLIT)))
    names, excluded = _read_split(path, split)
    shards = dict[Path, int]()
    for name in names:
        shard = resolve(folder, name, root, path)
        if name not in counts:
            raise file_error(path, f"{name!r:.80} is not in {info.name}: run `energon prepare`")
        if not shard.is_file():
            raise FileNotFoundError(f"no such file: {shard} (from {path}); check the folder")
        shards[shard] = counts[name]
    about = resolve(folder / META, dataset_config, root, folder)
    # Only dataset.yaml itself may be missing: then samples are the members as they are.
    if not about.is_file() and (dataset_config != DATASET or about.is_symlink()):
        raise FileNotFoundError(f"no such file: {about}; check dataset_config")
    config = read_mapping(about) if about.is_file() else {}
    fields, code = config.get("field_map") or {}, config.get("sample_loader") or ""
    if not isinstance(fields, dict):
        raise file_error(about, f"field_map is {fields!r:.80}, needed are members by field")
    accesses = {str(name): _parse_accesses(about, name, text) for name, text in fields.items()}
    return Folder(shards, excluded, accesses, f"{code!s:.80}")


def is_prepared(folder: Path) -> bool:
    """Return whether this is a folder that `energon prepare` has been through."""
    return any((folder / META / name).is_file() for name in INFO)


def _find_config(folder: Path, root: Path | None, *names: str) -> Path:
    paths = [resolve(folder / META, name, root, folder) for name in names]
    # A link that leads nowhere is no reason to take another, older file.
    path = next((path for path in paths if path.is_symlink() or path.is_file()), paths[0])
    if path.is_file():
        return path
    raise FileNotFoundError(
        f"no such file: {path}; run `energon prepare` there, or read tars with cp.TarDataset"
    )


def _read_split(path: Path, split: str) -> tuple[list[str], frozenset[str]]:
    """Return the names of a split's shards, in order, and of the samples that are left out."""
    config = read_mapping(path)
    parts = config.get("split_parts")
    if not isinstance(parts, dict) or split not in parts:
        have = ", ".join(map(str, parts)) if isinstance(parts, dict) else "none"
        raise file_error(path, f"there is no split {split!r:.80}, splits are: {have}")
    excluded = frozenset(expand_patterns(path, "exclude", config.get("exclude", [])))
    named = dict.fromkeys(expand_patterns(path, split, parts[split]))
    names = [name for name in named if name not in excluded]
    if not names:
        raise file_error(path, f"the split {split!r} has no shards")
    return names, excluded - named.keys()


def _parse_accesses(path: Path, name: object, text: object) -> tuple[Access, ...]:
    matches = [OPTION.fullmatch(option) for option in str(text).split(",")]
    if not all(matches):
        raise file_error(
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
