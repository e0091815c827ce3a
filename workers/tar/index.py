"""Indexes a tar shard: the place of every member, read from its headers and kept in a file.

Members become samples by webdataset's convention: a name splits at the first dot after its last
slash into key and extension (lower case), samples are in order of first appearance, whatever the
order of their members. A sample is broken where one of its members has no bytes to read.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..sources.cache_files import (
    Arrays,
    DamagedFileError,
    Stamp,
    identity,
    kept_path,
    log_damaged,
    opened_arrays,
    read_or_remove,
    write_arrays,
)
from ..sources.data_identity import spread
from ..sources.fingerprint import digest_arrays
from .headers import BLOCK, Entry, Member, linked, plain_file, walk
from .stored_shards import HeaderWindow, are_there, read_beside

WORTH_KEEPING = 8  # samples
META = re.compile(r"__[^/]*__($|/)")
NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
# The last member of a shard that `writing.py` wrote, and what is behind it.
SEAL, SEAL_BYTES, SEAL_END = "__counterpoise__/", 16, bytes(2 * BLOCK)
SEALED = re.compile(f"{SEAL}([0-9a-f]{{{2 * SEAL_BYTES}}})")
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard. Arrays, not objects: a large set of shards is kept in memory.

    `names` holds all keys, one after the other, as UTF-8; key i ends at `name_ends[i]`. Members
    of sample i end at `member_ends[i]` in the four columns of `members`: number of the extension
    in `extensions`, offset, size, checksum of the header. `faults` says of some samples why they
    cannot be used.
    """

    names: bytes
    name_ends: Integers
    member_ends: Integers
    members: Integers
    extensions: tuple[str, ...]
    faults: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.name_ends)

    def key(self, index: int) -> str:
        """Return the key of a sample."""
        start = self.name_ends[index - 1] if index else 0
        return self.names[start : self.name_ends[index]].decode()

    def sample(self, index: int) -> tuple[Member, ...]:
        """Return the members of a sample, in the order of the file."""
        start = self.member_ends[index - 1] if index else 0
        rows = self.members[start : self.member_ends[index]].tolist()
        return tuple(Member(self.extensions[kind], *rest) for kind, *rest in rows)

    def only(self, rows: Integers) -> "ShardIndex":
        """Return the index of some samples, in the order given; rows (n,)."""
        members = [np.arange(*span) for span in _spans(self.member_ends, rows)]
        place = {row: at for at, row in enumerate(rows.tolist())}
        names = [self.names[slice(*span)] for span in _spans(self.name_ends, rows)]
        return ShardIndex(
            names=b"".join(names),
            name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
            member_ends=np.cumsum([len(each) for each in members], dtype=np.int64),
            members=self.members[np.concatenate([*members, np.empty(0, np.int64)])],
            extensions=self.extensions,
            faults={place[row]: why for row, why in self.faults.items() if row in place},
        )

    @cached_property
    def digest(self) -> str:
        """Return a hash of keys, extensions, offsets, sizes, faults, the same for every copy."""
        names = self.names + "\n".join((*self.extensions, *self.faults.values())).encode()
        return digest_arrays(names, self.name_ends, self.member_ends, self.members[:, :3])


def shard_stamp(shard: Path | Any) -> Stamp:
    """Return what identifies a shard's state: its size, and the hash at its end, else its mtime."""
    size, mtime = identity(shard)
    if not isinstance(shard, Path):  # in a store, which says its state
        return size, mtime
    length = BLOCK + len(SEAL_END)
    with shard.open("rb", buffering=0) as file:
        try:
            end = os.pread(file.fileno(), length, max(0, size - length))
        except OSError as error:
            error.filename = str(shard)
            raise
    last = plain_file(end[:BLOCK]) if end[BLOCK:] == SEAL_END else None
    found = None if last is None else SEALED.fullmatch(last[0])
    # A stamp is of int64; below zero, where no time is.
    return size, mtime if found is None else ~(int(found[1][:16], 16) >> 1)


def _spans(ends: Integers, rows: Integers) -> list[list[int]]:
    """Return where each of some parts begins and ends."""
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    found: list[list[int]] = np.stack([begins[rows], ends[rows]], 1).tolist()
    return found


def open_index(
    shard: Path | Any,
    cache: Path | None = None,
    report: Callable[[DamagedFileError], None] = log_damaged,
) -> ShardIndex:
    """Return a shard's index: the kept one while its stamp is as it was, else a new scan.

    Of a shard with few samples none is kept: its headers are read sooner than a kept file, and a
    million tiny shards stay without a million files. A kept file that is damaged, or cannot be an
    index of this shard, is reported and made again. A file that cannot be kept is no error.
    Of a shard in a store (a StoreFile) an index that lies beside it is taken, too.
    Raises ValueError for a damaged shard.
    """
    path, about = kept_path(shard, "index.npz", cache), shard_stamp(shard)
    unpack = partial(_unpacked, length=about[0])
    index = read_or_remove(path, about, unpack, "index of this shard", report)
    if index is not None:
        return index
    index = None if isinstance(shard, Path) else _stored_index(shard, report)
    index = scan(shard) if index is None else index
    if len(index) >= WORTH_KEEPING:
        write_arrays(path, about, _packed(index))
    return index


def _stored_index(shard: Any, report: Callable[[DamagedFileError], None]) -> ShardIndex | None:
    """Return the index that lies beside a stored shard, if there is one of this shard."""
    found = read_beside(shard, "index.npz")
    if found is None:
        return None
    name, data = found
    try:
        arrays = opened_arrays(name, data)
    except DamagedFileError as error:
        report(error)
        return None
    # It was made of a copy of the shard, whose time was another.
    size = arrays.pop("stamp", np.empty(0)).tolist()[:1]
    index = _unpacked(arrays, shard.size)
    if size == [shard.size] and index is not None:
        some = [index.sample(row)[0] for row in spread(len(index), 3) if row not in index.faults]
        if are_there(shard, some):
            return index
    report(DamagedFileError(name, "holds no index of this shard"))
    return None


def scan(shard: Path | Any) -> ShardIndex:
    """Read a shard's headers and group its members; ValueError names the shard and the offset."""
    samples: dict[str, dict[str, Entry]] = {}
    if isinstance(shard, Path):
        with shard.open("rb", buffering=0) as file:
            read = partial(os.pread, file.fileno())
            entries = list(walk(read, os.fstat(file.fileno()).st_size, shard))
    else:
        entries = list(walk(HeaderWindow(shard), shard.size, shard))
    for entry in linked(entries) if any(each.target for each in entries) else entries:
        match = NAME.fullmatch(entry.name)
        if match is None or META.match(entry.name):
            continue
        sample, extension = samples.setdefault(match[1], {}), match[2].lower()
        first = sample.setdefault(extension, entry)
        # GNU tar writes a file that it was given twice as a link to itself.
        if first.offset != entry.offset:
            raise ValueError(
                f"{shard}: {entry.name!r:.200} stands there twice (bodies at {first.offset} and "
                f"{entry.offset}); keys must differ, so write the shard again"
            )
    return _columns(samples)


def _columns(samples: dict[str, dict[str, Entry]]) -> ShardIndex:
    names = [key.encode() for key in samples]
    numbers: dict[str, int] = {}
    rows, faults = list[tuple[int, ...]](), dict[int, str]()
    for row, sample in enumerate(samples.values()):
        for extension, entry in sorted(sample.items(), key=lambda member: member[1].offset):
            rows.append((numbers.setdefault(extension, len(numbers)), *entry[1:4]))
            if entry.fault:
                faults.setdefault(row, entry.fault)
    return ShardIndex(
        names=b"".join(names),
        name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
        member_ends=np.cumsum([len(sample) for sample in samples.values()], dtype=np.int64),
        members=np.asarray(rows, np.int64).reshape(-1, 4),
        extensions=tuple(numbers),
        faults=faults,
    )


TYPES = {
    **dict.fromkeys(("names", "extensions", "faults"), np.dtype(np.uint8)),
    **dict.fromkeys(("name_ends", "member_ends", "members"), np.dtype(np.int64)),
}


def _packed(index: ShardIndex) -> Arrays:
    extensions = "\0".join(index.extensions).encode()
    return {
        "names": np.frombuffer(index.names, np.uint8),
        "name_ends": index.name_ends,
        "member_ends": index.member_ends,
        "members": index.members,
        "extensions": np.frombuffer(extensions, np.uint8),
        "faults": np.frombuffer(json.dumps([*index.faults.items()]).encode(), np.uint8),
    }


def _unpacked(arrays: Arrays, length: int) -> ShardIndex | None:
    """Return the index in a kept file; None where it can be none of a shard of `length` bytes."""
    # A checksum says that the file is as it was written, not that this version wrote it.
    if {name: array.dtype for name, array in arrays.items()} != TYPES:
        return None
    names, members, name_ends = arrays["names"].tobytes(), arrays["members"], arrays["name_ends"]
    member_ends = arrays["member_ends"]
    try:
        names.decode()
        kinds = arrays["extensions"].tobytes().decode()
        faults = {int(row): str(why) for row, why in json.loads(arrays["faults"].tobytes())}
    except (ValueError, TypeError, RecursionError):
        return None
    extensions = tuple(kinds.split("\0")) if len(members) else ()
    if members.ndim != 2 or members.shape[1] != 4:
        return None
    numbers, offsets, sizes, _ = members.T
    fits = (
        are_ends(name_ends, len(names))
        and are_between_characters(name_ends, names)
        and are_ends(member_ends, len(members))
        and len(name_ends) == len(member_ends)
        and ((numbers >= 0) & (numbers < len(extensions))).all()
        and ((offsets >= BLOCK) & (sizes >= 0) & (sizes <= length - offsets)).all()
    )
    return ShardIndex(names, name_ends, member_ends, members, extensions, faults) if fits else None


def are_ends(ends: Integers, length: int) -> bool:
    """Return whether these are the ends of one or more parts that make up `length`."""
    if ends.ndim != 1 or not len(ends):
        return ends.ndim == 1 and length == 0
    return bool(ends[0] >= 0 and (ends[1:] >= ends[:-1]).all() and ends[-1] == length)


def are_between_characters(ends: Integers, names: bytes) -> bool:
    """Return whether no character of the names, in UTF-8, is cut by an end."""
    after = np.frombuffer(names + b"\0", np.uint8)[ends]
    return bool((after & 0xC0 != 0x80).all())
