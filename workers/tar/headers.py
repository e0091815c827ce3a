"""Reads a tar file's headers: its members, where their bytes are, and what links stand for.

A tar file is a chain: a 512-byte header with a size, the body padded to 512, the next header, and
at least one block of zeros as the end mark. `walk` hops along that chain with one small read per
member and never reads a body (except those that hold a long name).

Nearly all headers of a shard look alike: a short name, octal numbers of fixed width, a regular
file. Those are read here. Whatever looks otherwise (pax and GNU extensions, binary numbers, names
in two parts, damage) is left to tarfile, and nothing else than tarfile would say is said here.

No member is passed over in silence. A link stands for the bytes of a file of the same shard; one to
anything else (another link, say), and a member that is no plain file, is given with the reason why
it has none.
"""

import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from zlib import adler32, crc32

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
    if header[329:345] not in DEVICE or _checksum(header) != int(numbers[2], 8):
        return None
    return header[:100].partition(b"\0")[0].decode(), int(numbers[1], 8)


def _checksum(header: bytes) -> int:
    """Return the checksum that an ASCII header should have; its own field counts as 8 spaces.

    Adler-32's low half is 1 + the sum modulo 65521, and 504 bytes below 128 stay below that.
    """
    return (adler32(header[156:], adler32(header[:148])) & 0xFFFF) - 1 + 8 * ord(" ")


BLOCK = 512
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")  # gzip, zstd, bzip2, xz
LONGEST_NAME = 1 << 20
ERRORS = "backslashreplace"  # names that are no UTF-8 must still travel as text
SIZE = re.compile(r"[0-9]{1,19}")
# What is about other members: folders, a folder's list of files, a volume's label, access rights.
ASIDE = (tarfile.DIRTYPE, b"D", b"V", b"A")
# What has no bytes, or not all; named as the error does.
KINDS = {
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "a device"),
    tarfile.FIFOTYPE: "a pipe",
    b"M": "the end of a file that begins in another volume",
}
Read = Callable[[int, int], bytes]


class Entry(NamedTuple):
    """A member, by its header.

    offset, size: of its bytes; header: a checksum of the 512 bytes before them. target: of a link,
    the name of what it stands for; fault: why no bytes can be read.
    """

    name: str
    offset: int
    size: int
    header: int
    target: str = ""
    fault: str = ""


class Member(NamedTuple):
    """A file in a shard: its extension (all after the key), the offset and size of its bytes.

    `header_crc` is a checksum of the 512 bytes before them, which have its name and size.
    """

    extension: str
    offset: int
    size: int
    header_crc: int


def follow_links(entries: list[Entry]) -> Iterator[Entry]:
    """Yield members; in the place of a link the file of the shard that it stands for."""
    places = dict[str, Entry]()
    for member in entries:
        if not member.target:
            name = posixpath.normpath(member.name)
            fault = f"it is a link, and {name!r:.200} stands in the shard twice"
            places[name] = member._replace(fault=fault) if name in places else member
    for member in entries:
        if not member.target:
            yield member
        elif member.target in places:
            yield places[member.target]._replace(name=member.name)
        else:
            fault = (
                f"{member.name!r:.200} is a link to {member.target!r:.200}, which is no file of "
                "this shard: write that there, too, or a plain file in place of the link (tar "
                "--dereference --hard-dereference)"
            )
            yield member._replace(fault=fault)


def walk(read: Read, length: int, shard: object) -> Iterator[Entry]:
    """Yield all members that are or stand for a file, with what cannot be one.

    `read(size, at)` returns bytes of a shard of `length` bytes, fewer where it ends before.
    """
    at = 0
    while True:
        header = read(BLOCK, at)
        if len(header) < BLOCK and not at and (not header or header.startswith(PACKED)):
            state = "compressed: unpack it" if header else "empty: copy or write it again"
            raise ValueError(f"{shard} is no uncompressed tar file, it is {state}")
        if len(header) < BLOCK:
            raise ValueError(_describe_cut(shard, at, "ends without an end mark"))
        if not any(header):
            _refuse_more(read, at + BLOCK, shard)
            return
        # Nearly all members are plain files; tarfile takes several times as long for them.
        if (plain := plain_file(header)) is not None:
            entry = Entry(plain[0], at + BLOCK, plain[1], crc32(header))
        else:
            entry = _read_by_tarfile(read, at, shard)
        at = _find_next_header(entry, length, shard)
        if entry.name:
            yield entry


class _Tar:
    """What tarfile reads of a TarFile, from a place in a shard on."""

    encoding, errors = "utf-8", ERRORS

    def __init__(self, read: Read, at: int) -> None:
        self._read, self._at, self.offset = read, at, at
        self.fileobj, self.pax_headers = self, dict[str, str]()

    def read(self, size: int) -> bytes:
        if size > LONGEST_NAME:
            raise tarfile.HeaderError(f"an extended header of {size} bytes")
        data = self._read(size, self._at)
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at


def _read_by_tarfile(read: Read, at: int, shard: object) -> Entry:
    """Return a member whose header is not a plain one; without a name where it is about others."""
    tar: Any = _Tar(read, at)
    try:
        info = tarfile.TarInfo.fromtarfile(tar)
    except (tarfile.HeaderError, ValueError, IndexError, RecursionError) as error:
        state = "no uncompressed tar file" if at == 0 else f"damaged at byte {at}"
        raise ValueError(f"{shard} is {state} ({error}); write it again") from None
    if not SIZE.fullmatch(info.pax_headers.get("size", "0")):
        raise ValueError(f"{shard}: an extended header at {at} gives no size")
    header = read(BLOCK, info.offset_data - BLOCK)
    name, target, fault, kind = info.name, "", "", ""
    # Incremental dumps have times where others have a name's first part, which tarfile overlooks.
    is_gnu = header[257:265] == tarfile.GNU_MAGIC
    if is_gnu and name == tarfile.TarInfo.frombuf(header, "utf-8", ERRORS).name:
        name = header[:100].partition(b"\0")[0].decode("utf-8", ERRORS)
    if info.islnk():
        target = posixpath.normpath(info.linkname)
    elif info.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), info.linkname))
    elif info.sparse is not None:
        kind = "stored sparse"
    elif not info.isreg():
        kind = KINDS.get(info.type, f"of the unknown type {info.type!r}")
    if kind:
        fault = f"{name!r:.200} is {kind}: write it as a plain file"
    # A link or a folder may name a size, but has no body; tarfile reads one for unknown types.
    has_body = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
    is_told = has_body and info.sparse is None
    size = info.size if is_told else tar.offset - info.offset_data
    name = "" if info.type in ASIDE else name
    return Entry(name, info.offset_data, size, crc32(header), target, fault)


def _refuse_more(read: Read, at: int, shard: object) -> None:
    """Raise ValueError for a shard that has more than zeros from a place on."""
    start = at
    while data := read(1 << 20, at):
        if data.strip(b"\0"):
            raise ValueError(
                f"{shard} goes on after its end mark at byte {start - BLOCK}, with another archive "
                "or the rest of an older file: join archives with tar --concatenate, or keep what "
                f"is before with truncate --size={start}"
            )
        at += len(data)


def _find_next_header(entry: Entry, length: int, shard: object) -> int:
    """Return the offset after a body and its padding; ValueError where the file ends before."""
    if entry.size < 0 or entry.offset + entry.size > length:
        fault = f"{entry.name!r} needs {entry.size} bytes"
        raise ValueError(_describe_cut(shard, entry.offset - BLOCK, fault))
    return entry.offset + -(-entry.size // BLOCK) * BLOCK


def _describe_cut(shard: object, at: int, fault: str) -> str:
    return f"{shard} is truncated: at byte {at} it {fault}; copy the shard again"
