"""Indexes a tar shard: the place of every member, read from its headers and kept in a file.

A tar file is a chain: a 512-byte header with a size, the body padded to 512, the next header, and
at least one block of zeros as the end mark. The scan hops along that chain with one small read per
member and never reads a body (except those that hold a long name). Members become samples by
webdataset's convention: a name splits at the first dot after its last slash into key and extension
(lower case), samples are in order of first appearance, whatever the order of their members.

Nearly all headers of a shard look alike: a short name, octal numbers of fixed width, a regular
file. Those are read here. Whatever looks otherwise (pax and GNU extensions, binary numbers, names
in two parts, damage) is left to tarfile, whose word is final; nothing else than tarfile would say
is said here.
"""

import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zlib import adler32, crc32

import numpy as np

from ..sources.fingerprint import digest_arrays
from .cache_files import (
    Arrays,
    DamagedFileError,
    identity,
    kept_path,
    log_damaged,
    read_or_remove,
    remove_file,
    write_arrays,
)

# mode, uid, gid, size, mtime, checksum, type; as GNU tar, Python, libarchive and Go write them
NUMBERS = re.compile(rb"(?:[0-7]{6}[0-7 ]\0){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})\0 0")
# the device numbers of a file that is no device
DEVICE = {bytes(16), b"0000000\0" * 2, b"000000 \0" * 2}


def plain_file(header: bytes) -> tuple[str, int] | None:
    """Return (name, size) from a 512-byte header of a regular file; None: tarfile must look.

    >>> plain_file(bytes(512)) is None
    True
    """
    numbers = NUMBERS.match(header, 100)
    if numbers is None or not header.isascii() or header[345]:
        return None
    if header[329:345] not in DEVICE or _sum(header) != int(numbers[2], 8):
        return None
    return header[:100].partition(b"\0")[0].decode(), int(numbers[1], 8)


def _sum(header: bytes) -> int:
    """Return the checksum that an ASCII header should have; its own field counts as 8 spaces.

    Adler-32's low half is 1 + the sum modulo 65521, and 504 bytes below 128 stay below that.
    """
    return (adler32(header[156:], adler32(header[:148])) & 0xFFFF) - 1 + 8 * ord(" ")


BLOCK = 512
LONGEST_NAME = 1 << 20
WORTH_KEEPING = 8  # samples
ERRORS = "backslashreplace"  # names that are no UTF-8 must still travel as text
META = re.compile(r"__[^/]*__($|/)")
NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, *PAX, tarfile.XGLTYPE)
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Member(NamedTuple):
    """A file in a shard: its extension (all after the key), the offset and size of its bytes.

    `header` is a checksum of the 512 bytes before them, which have its name and size.
    """

    extension: str
    offset: int
    size: int
    header: int


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard. Arrays, not objects: a large set of shards is kept in memory.

    `names` holds all keys, one after the other, as UTF-8; key i ends at `name_ends[i]`. Members
    of sample i end at `member_ends[i]` in the four columns of `members`: number of the extension
    in `extensions`, offset, size, checksum of the header.
    """

    names: bytes
    name_ends: Integers
    member_ends: Integers
    members: Integers
    extensions: tuple[str, ...]

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

    @cached_property
    def digest(self) -> str:
        """Return a hash of keys, extensions, offsets and sizes, the same for every copy."""
        names = self.names + "\n".join(self.extensions).encode()
        return digest_arrays(names, self.name_ends, self.member_ends, self.members[:, :3])


def open_index(
    shard: Path,
    cache: Path | None = None,
    report: Callable[[DamagedFileError], None] = log_damaged,
) -> ShardIndex:
    """Return a shard's index: the kept one while size and mtime are as they were, else a new scan.

    Of a shard with few samples none is kept: its headers are read sooner than a kept file, and a
    million tiny shards stay without a million files. A kept file that is damaged, or cannot be an
    index of this shard, is reported and made again. A file that cannot be kept is no error.
    Raises ValueError for a damaged shard.
    """
    path, about = kept_path(shard, "index.npz", cache), identity(shard)
    kept = read_or_remove(path, about, report)
    if kept is not None:
        index = _unpacked(kept)
        if index is not None and _fits(index, about[0]):
            return index
        report(DamagedFileError(path, "holds no index of this shard"))
        remove_file(path)
    index = scan(shard)
    if len(index) >= WORTH_KEEPING:
        write_arrays(path, about, _packed(index))
    return index


def scan(shard: Path) -> ShardIndex:
    """Read a shard's headers and group its members; ValueError names the shard and the offset."""
    samples: dict[str, dict[str, Member]] = {}
    with shard.open("rb", buffering=0) as file:
        for name, offset, size, header in _walk(file.fileno(), shard):
            match = NAME.fullmatch(name)
            if match is None or META.match(name):
                continue
            key, extension = match[1], match[2].lower()
            sample = samples.setdefault(key, {})
            if extension in sample:
                raise ValueError(
                    f"{shard}: {name!r} stands there twice (bodies at {sample[extension].offset} "
                    f"and {offset}); keys must differ, so write the shard again"
                )
            sample[extension] = Member(extension, offset, size, header)
    return _columns(samples)


def _walk(fd: int, shard: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, offset of the body, size, checksum of the header) of all regular files."""
    length = os.fstat(fd).st_size
    at, overrides = 0, dict[str, str]()
    while True:
        header, body = os.pread(fd, BLOCK, at), at + BLOCK
        if len(header) < BLOCK:
            raise ValueError(_cut(shard, at, "ends without an end mark"))
        # Nearly all members are plain files; tarfile takes several times as long for them.
        plain = None if overrides else plain_file(header)
        if plain is not None:
            name, size = plain
            at = _next_header(body, size, length, f"{name!r}", shard)
            yield name, body, size, crc32(header)
            continue
        if not any(header):
            return
        info = _parsed(header, shard, at)
        size = int(overrides.get("size", info.size))
        at = _next_header(body, _stored(info, size), length, f"{info.name!r}", shard)
        # An extended header is about the next member, which may have several of them.
        if info.type in EXTENDED:
            overrides |= _overrides(fd, info, body, shard)
            continue
        if "GNU.sparse.major" in overrides or info.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError(f"{shard}: {info.name!r} is stored sparse; write it as a plain file")
        if info.isreg():
            yield overrides.get("path", info.name), body, size, crc32(header)
        overrides = {}


def _stored(info: tarfile.TarInfo, size: int) -> int:
    """Return the bytes of a member's body; `size` is its size by its extended headers."""
    if info.type in EXTENDED:
        return info.size
    # A link or a folder may name a size, but has no body; tarfile reads one for unknown types.
    return size if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES else 0


def _next_header(body: int, stored: int, length: int, name: str, shard: Path) -> int:
    """Return the offset after a body and its padding; ValueError where the file ends before."""
    if stored < 0 or body + stored > length:
        raise ValueError(_cut(shard, body - BLOCK, f"{name!r} needs {stored} bytes"))
    return body + -(-stored // BLOCK) * BLOCK


def _parsed(header: bytes, shard: Path, at: int) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", ERRORS)
    except tarfile.HeaderError as error:
        what = "no uncompressed tar file" if at == 0 else f"damaged at byte {at}"
        raise ValueError(f"{shard} is {what} ({error}); write it again") from None


def _overrides(fd: int, info: tarfile.TarInfo, body: int, shard: Path) -> dict[str, str]:
    """Return the fields that an extended header sets for the next member: its path, its size."""
    if info.size > LONGEST_NAME:
        raise ValueError(f"{shard}: an extended header of {info.size} bytes at {body - BLOCK}")
    data = os.pread(fd, info.size, body)
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", ERRORS)}
    return dict(_pax_records(data)) if info.type in PAX else {}


def _pax_records(data: bytes) -> Iterator[tuple[str, str]]:
    r"""Yield the records "length key=value\n" of a pax header.

    >>> list(_pax_records(b"14 path=a.jpg\n"))
    [('path', 'a.jpg')]
    """
    at = 0
    while match := re.compile(rb"(\d+) ([^=]+)=").match(data, at):
        end = at + int(match[1])
        value = data[match.end() : end - 1]
        yield match[2].decode("utf-8", "replace"), value.decode("utf-8", ERRORS)
        at = max(end, match.end())


def _cut(shard: Path, at: int, what: str) -> str:
    return f"{shard} is truncated: at byte {at} it {what}; copy the shard again"


def _columns(samples: dict[str, dict[str, Member]]) -> ShardIndex:
    names = [key.encode() for key in samples]
    numbers: dict[str, int] = {}
    rows = [
        (numbers.setdefault(member.extension, len(numbers)), *member[1:])
        for sample in samples.values()
        for member in sorted(sample.values(), key=lambda member: member.offset)
    ]
    return ShardIndex(
        names=b"".join(names),
        name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
        member_ends=np.cumsum([len(sample) for sample in samples.values()], dtype=np.int64),
        members=np.asarray(rows, np.int64).reshape(-1, 4),
        extensions=tuple(numbers),
    )


def _packed(index: ShardIndex) -> Arrays:
    extensions = "\0".join(index.extensions).encode()
    return {
        "names": np.frombuffer(index.names, np.uint8),
        "name_ends": index.name_ends,
        "member_ends": index.member_ends,
        "members": index.members,
        "extensions": np.frombuffer(extensions, np.uint8),
    }


def _unpacked(arrays: Arrays) -> ShardIndex | None:
    """Return the index in a kept file, or None where its parts are of other types."""
    # A checksum says that the file is as it was written, not that this version wrote it.
    numbers, letters = ("name_ends", "member_ends", "members"), ("names", "extensions")
    if not {*numbers, *letters} <= set(arrays):
        return None
    columns, texts = ([arrays[name] for name in names] for names in (numbers, letters))
    if any(column.dtype != np.int64 for column in columns):
        return None
    if any(text.dtype != np.uint8 for text in texts):
        return None
    name_ends, member_ends, members = columns
    try:
        names, extensions = (text.tobytes() for text in texts)
        named = tuple(extensions.decode().split("\0")) if extensions or len(members) else ()
        names.decode()
    except UnicodeDecodeError:
        return None
    return ShardIndex(names, name_ends, member_ends, members, named)


def _fits(index: ShardIndex, length: int) -> bool:
    """Return whether an index can be one of a shard of `length` bytes."""
    members = index.members
    if members.ndim != 2 or members.shape[1] != 4:
        return False
    kinds, offsets, sizes, _ = members.T
    return bool(
        _are_ends(index.name_ends, len(index.names))
        and _are_between_characters(index.name_ends, index.names)
        and _are_ends(index.member_ends, len(members))
        and len(index.name_ends) == len(index.member_ends)
        and ((kinds >= 0) & (kinds < len(index.extensions))).all()
        and ((offsets >= BLOCK) & (sizes >= 0) & (sizes <= length - offsets)).all()
    )


def _are_ends(ends: Integers, length: int) -> bool:
    """Return whether these are the ends of one or more parts that make up `length`."""
    if ends.ndim != 1 or not len(ends):
        return ends.ndim == 1 and length == 0
    return bool(ends[0] >= 0 and (ends[1:] >= ends[:-1]).all() and ends[-1] == length)


def _are_between_characters(ends: Integers, names: bytes) -> bool:
    """Return whether no character of the names, in UTF-8, is cut by an end."""
    after = np.frombuffer(names + b"\0", np.uint8)[ends]
    return bool((after & 0xC0 != 0x80).all())
