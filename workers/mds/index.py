"""Reads an MDS folder's index.json: its shards, and what their columns are.

{"version": 2, "shards": [{"format": "mds", "raw_data": {"basename", "bytes"}, "zip_data": ...,
"samples", "column_names", "column_encodings", "column_sizes", "compression"}, ...]}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .encodings import checked_encoding

INDEX = "index.json"
MOST_BYTES = 256 << 20
FORMAT, VERSION = "mds", 2


class Column(NamedTuple):
    """A column: its name, how it is encoded, and the bytes of each value; None where they vary."""

    name: str
    encoding: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: its file's name, bytes and samples, and its columns in the order of a sample.

    packed: the file that it is compressed in and how; None for one that is not.
    """

    name: str
    nbytes: int
    samples: int
    columns: tuple[Column, ...]
    packed: tuple[str, str] | None


def read_index(folder: Path) -> tuple[Shard, ...]:
    """Return the shards of a folder; ValueError says why its index.json is none of MDS."""
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}; an MDS folder has one, check the path")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has over {MOST_BYTES} bytes")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        raise ValueError(f"{path} is no index of MDS: it has no list of shards")
    seen = dict[tuple[Column, ...], tuple[Column, ...]]()
    shards = list[Shard]()
    for number, each in enumerate(found["shards"]):
        try:
            shards.append(_shard(each, seen))
        except (KeyError, TypeError, ValueError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}: shard {number} {what}") from None
    if len({shard.name.removesuffix(".mds") for shard in shards}) < len(shards):
        raise ValueError(f"{path} names a shard twice")
    return tuple(shards)


def _shard(about: dict[str, Any], seen: dict[tuple[Column, ...], tuple[Column, ...]]) -> Shard:
    if (kind := about["format"]) != FORMAT or about["version"] != VERSION:
        raise ValueError(
            f"is of format {kind!r:.40}, version {about['version']!r:.40}; read are {FORMAT!r}, 2"
        )
    described = (about[f"column_{each}"] for each in ("names", "encodings", "sizes"))
    columns = tuple(
        Column(_text(name), checked_encoding(_text(encoding)), size and _number(size))
        for name, encoding, size in zip(*described, strict=True)
    )
    raw = about["raw_data"]
    return Shard(
        _name(raw["basename"]),
        _number(raw["bytes"], 1 << 32),  # offsets are u32
        _number(about["samples"]),
        seen.setdefault(columns, columns),  # most shards have the same
        _packed(about) if about.get("zip_data") else None,
    )


def _packed(about: dict[str, Any]) -> tuple[str, str]:
    return _name(about["zip_data"]["basename"]), _text(about["compression"]).partition(":")[0]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"has {value!r:.80}, needed is a text")
    return value


def _number(value: object, end: int = 1 << 62) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"has {value!r:.80}, needed is a number of 0 to {end - 1}")
    return value


def _name(value: object) -> str:
    parts = Path(_text(value)).parts
    if not parts or ".." in parts or Path(*parts).is_absolute() or "\0" in str(value):
        raise ValueError(f"is {value!r:.80}, which leaves the folder")
    return "/".join(parts)
