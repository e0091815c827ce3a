"""Indexes a tar shard: the place of every member, read from its headers and kept in a file.

Members become samples by webdataset's convention: a name splits at the first dot after its last
slash into key and extension (lower case), samples are in order of first appearance, whatever the
order of their members. A sample is broken where one of its members has no bytes to read.
"""

import os
import re
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..sources.cache_files import (
    DamagedFileError,
    Stamp,
    identity,
    kept_path,
    log_damaged,
    unpack_arrays,
)
from ..sources.data_identity import spread
from ..sources.file_index import FileIndex, Integers
from ..sources.fingerprint import digest_arrays
from .headers import BLOCK, Entry, Member, follow_links, plain_file, walk
from .stored_shards import HeaderWindow, are_there, read_beside

META = re.compile(r"__[^/]*__($|/)")
NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
# The last member of a shard that `writing.py` wrote, and what is behind it.
SEAL, SEAL_BYTES, SEAL_END = "__counterpoise__/", 16, bytes(2 * BLOCK)
SEALED = re.compile(f"{SEAL}([0-9a-f]{{{2 * SEAL_BYTES}}})")


class ShardIndex(FileIndex):
    """The samples of one shard.

    A place is a member: the number of its extension in the fact `extensions`, offset, size,
    checksum of the header. The fact `faults` says of some rows why they cannot be used.
    """

    @cached_property
    def faults(self) -> dict[int, str]:
        """Why some samples cannot be used, by row."""
        return dict(self.facts["faults"])

    def sample(self, row: int) -> tuple[Member, ...]:
        """Return the members of a sample, in the order of the file."""
        extensions = self.facts["extensions"]
        return tuple(Member(extensions[kind], *place) for kind, *place in self.find_places(row))

    def select(self, rows: Integers) -> "ShardIndex":
        """Return the index of some samples, in the order given; rows (n,)."""
        chosen = rows.tolist()
        members = [self.find_places(row) for row in chosen]
        return ShardIndex.build(
            [self.name(row).encode() for row in chosen],
            [member for parts in members for member in parts],
            map(len, members),
            extensions=self.facts["extensions"],
            faults=[(at, self.faults[row]) for at, row in enumerate(chosen) if row in self.faults],
        )

    @cached_property
    def digest(self) -> str:
        """Return a hash of keys, extensions, offsets, sizes, faults, the same for every copy."""
        names = self.names + "\n".join((*self.facts["extensions"], *self.faults.values())).encode()
        return digest_arrays(names, self.name_ends, self.place_ends, self.places[:, :3])


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
    seal = None if last is None else SEALED.fullmatch(last[0])
    # A stamp is of int64; below zero, where no time is.
    return size, mtime if seal is None else ~(int(seal[1][:16], 16) >> 1)


def open_index(
    shard: Path | Any,
    cache: Path | None = None,
    report: Callable[[DamagedFileError], None] = log_damaged,
) -> ShardIndex:
    """Return a shard's index: the kept one while its stamp is as it was, else a new scan.

    Of a shard in a store (a StoreFile) an index that lies beside it is taken, too. Raises
    ValueError for a damaged shard.
    """

    def make() -> ShardIndex:
        index = None if isinstance(shard, Path) else _stored_index(shard, report)
        return scan(shard) if index is None else index

    path = kept_path(shard, "index.npz", cache)
    return ShardIndex.load_or_build(path, shard_stamp(shard), make, report)


def _stored_index(shard: Any, report: Callable[[DamagedFileError], None]) -> ShardIndex | None:
    """Return the index that lies beside a stored shard, if there is one of this shard."""
    stored = read_beside(shard, "index.npz")
    if stored is None:
        return None
    name, data = stored
    try:
        arrays = unpack_arrays(name, data)
    except DamagedFileError as error:
        report(error)
        return None
    # It was made of a copy of the shard, whose time was another.
    size = arrays.pop("stamp", np.empty(0)).tolist()[:1]
    index = ShardIndex.from_arrays(arrays)
    if size == [shard.size] and index is not None:
        rows = [row for row in spread(len(index), 3) if row not in index.faults]
        first_members = [index.sample(row)[0] for row in rows]
        if are_there(shard, first_members):
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
    for member in follow_links(entries) if any(member.target for member in entries) else entries:
        match = NAME.fullmatch(member.name)
        if match is None or META.match(member.name):
            continue
        sample, extension = samples.setdefault(match[1], {}), match[2].lower()
        first = sample.setdefault(extension, member)
        # GNU tar writes a file that it was given twice as a link to itself.
        if first.offset != member.offset:
            raise ValueError(
                f"{shard}: {member.name!r:.200} stands there twice (bodies at {first.offset} and "
                f"{member.offset}); keys must differ, so write the shard again"
            )
    return _build_index(samples)


def _build_index(samples: dict[str, dict[str, Entry]]) -> ShardIndex:
    numbers: dict[str, int] = {}
    rows, faults = list[tuple[int, ...]](), dict[int, str]()
    for row, sample in enumerate(samples.values()):
        for extension, entry in sorted(sample.items(), key=lambda named: named[1].offset):
            rows.append((numbers.setdefault(extension, len(numbers)), *entry[1:4]))
            if entry.fault:
                faults.setdefault(row, entry.fault)
    return ShardIndex.build(
        [key.encode() for key in samples],
        rows,
        map(len, samples.values()),
        extensions=[*numbers],
        faults=[*faults.items()],
    )
