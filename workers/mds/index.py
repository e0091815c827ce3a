"""Reads an MDS folder's index.json: its shards, and what their columns are."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from .encodings import checked_encoding

INDEX = "index.json"
MOST_BYTES = 256 << 20
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Column(NamedTuple):
    """A column: its name, how it is encoded, and the bytes of each value; None where they vary."""

    name: str
    encoding: str
    size: int | None


class _File(msgspec.Struct):
    basename: str
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0  # offsets are u32


class Shard(msgspec.Struct):
    """A shard, as index.json describes it."""

    format: Literal["mds"]
    version: Literal[2]
    samples: Number
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Number | None]
    raw_data: _File
    zip_data: _File | None = None
    compression: str | None = None
    columns: tuple[Column, ...] = ()  # in the order of a sample

    @property
    def name(self) -> str:
        """The name of the shard's file."""
        return self.raw_data.basename

    @property
    def nbytes(self) -> int:
        """The bytes of the shard."""
        return self.raw_data.bytes


def read_index(folder: Path) -> tuple[Shard, ...]:
    """Return the shards of a folder; ValueError says why its index.json is none of MDS."""
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}; an MDS folder has one, check the path")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has over {MOST_BYTES} bytes")
    try:
        index: Any = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise ValueError(f"{path} is no index of MDS: it has no list of shards")
    seen = dict[tuple[Column, ...], tuple[Column, ...]]()
    shards = list[Shard]()
    for number, described in enumerate(index["shards"]):
        try:
            shard = msgspec.convert(described, Shard)
            for file in filter(None, (shard.raw_data, shard.zip_data)):
                file.basename = _check_name(file.basename)
            encodings = map(checked_encoding, shard.column_encodings)
            pairs = zip(shard.column_names, encodings, shard.column_sizes, strict=True)
            columns = tuple(Column(*pair) for pair in pairs)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"{path}: shard {number}: {error}") from None
        shard.columns = seen.setdefault(columns, columns)  # most shards have the same
        shards.append(shard)
    if len({shard.name.removesuffix(".mds") for shard in shards}) < len(shards):
        raise ValueError(f"{path} names a shard twice")
    return tuple(shards)


def _check_name(value: str) -> str:
    parts = Path(value).parts
    if not parts or ".." in parts or Path(*parts).is_absolute() or "\0" in value:
        raise ValueError(f"a file is {value!r}, which leaves the folder")
    return "/".join(parts)
