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
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
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
    if header[329:345] not in DEVICE or _sum(header) != int(numbers[2], 8):
        return None
    return header[:100].partition(b"\0")[0].decode(), int(numbers[1], 8)


def _sum(header: bytes) -> int:
    """Return the checksum that an ASCII header should have; its own field counts as 8 spaces.

    Adler-32's low half is 1 + the sum modulo 65521, and 504 bytes below 128 stay below that.
    """
    return (adler32(header[156:], adler32(header[:148])) & 0xFFFF) - 1 + 8 * ord(" ")


BLOCK = 512
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")  # gzip, zstd, bzip2, xz
LONGEST_NAME = 1 << 20
ERRORS = "backslashreplace"  # names that are no UTF-8 must still travel as text
SIZE = re.compile(r"[0-9]{1,19}")
PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, *PAX, tarfile.XGLTYPE)
# What is about other members: folders, a folder's list of files, a volume's label, access rights.
ASIDE = (tarfile.DIRTYPE, b"D", b"V", b"A")
# What has no bytes, or not all; named as the error does.
KINDS = {
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "a device"),
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "stored sparse",
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

    `header` is a checksum of the 512 bytes before them, which have its name and size.
    """

    extension: str
    offset: int
    size: int
    header: int


def linked(entries: list[Entry]) -> Iterator[Entry]:
    """Yield members; in the place of a link the file of the shard that it stands for."""
    places = dict[str, Entry]()
    for each in entries:
        if not each.target:
            name = posixpath.normpath(each.name)
            fault = f"it is a link, and {name!r:.200} stands in the shard twice"
            places[name] = each._replace(fault=fault) if name in places else each
    for each in entries:
        if not each.target:
            yield each
        elif each.target in places:
            yield places[each.target]._replace(name=each.name)
        else:
            fault = (
                f"{each.name!r:.200} is a link to {each.target!r:.200}, which is no file of this "
                "shard: write that there, too, or a plain file in place of the link (tar "
                "--dereference --hard-dereference)"
            )
            yield each._replace(fault=fault)


def walk(read: Read, length: int, shard: object) -> Iterator[Entry]:
    """Yield all members that are or stand for a file, with what cannot be one.

    `read(size, at)` returns bytes of a shard of `length` bytes, fewer where it ends before.
    """
    at, overrides = 0, dict[str, str]()
    while True:
        header, body = read(BLOCK, at), at + BLOCK
        if len(header) < BLOCK and not at and (not header or header.startswith(PACKED)):
            what = "compressed: unpack it" if header else "empty: copy or write it again"
            raise ValueError(f"{shard} is no uncompressed tar file, it is {what}")
        if len(header) < BLOCK:
            raise ValueError(_cut(shard, at, "ends without an end mark"))
        # Nearly all members are plain files; tarfile takes several times as long for them.
        plain = None if overrides else plain_file(header)
        if plain is not None:
            name, size = plain
            at = _next_header(body, size, length, f"{name!r}", shard)
            yield Entry(name, body, size, crc32(header))
            continue
        if not any(header):
            _refuse_more(read, body, shard)
            return
        info = _parsed(header, shard, at)
        size = int(overrides.get("size", info.size))
        body = _after_map(read, header, body) if info.type == tarfile.GNUTYPE_SPARSE else body
        stored = _stored(info, size)
        at = _next_header(body, stored, length, f"{info.name!r}", shard)
        # An extended header is about the next member, which may have several of them.
        if info.type in EXTENDED:
            overrides |= _overrides(read, info, body, shard)
            continue
        if info.type not in ASIDE:
            yield _special(info, overrides)._replace(offset=body, size=stored, header=crc32(header))
        overrides = {}


def _special(info: tarfile.TarInfo, overrides: Mapping[str, str]) -> Entry:
    """Return the name of a member whose header is not a plain one, and its target or fault."""
    name = overrides.get("GNU.sparse.name") or overrides.get("path", info.name)
    entry = Entry(name, 0, 0, 0)
    target = overrides.get("linkpath", info.linkname)
    if info.islnk():
        return entry._replace(target=posixpath.normpath(target))
    if info.issym():
        inside = posixpath.join(posixpath.dirname(name), target)
        return entry._replace(target=posixpath.normpath(inside))
    if any(record.startswith("GNU.sparse.") for record in overrides):
        kind = KINDS[tarfile.GNUTYPE_SPARSE]
    elif info.isreg() and info.type not in KINDS:
        return entry
    else:
        kind = KINDS.get(info.type, f"of the unknown type {info.type!r}")
    return entry._replace(fault=f"{name!r:.200} is {kind}: write it as a plain file")


def _after_map(read: Read, header: bytes, body: int) -> int:
    """Return where an old GNU sparse file's body begins: after the blocks that go on its map."""
    more = header[482]
    while more:
        block, body = read(BLOCK, body), body + BLOCK
        more = len(block) == BLOCK and block[504]
    return body


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


def _stored(info: tarfile.TarInfo, size: int) -> int:
    """Return the bytes of a member's body; `size` is its size by its extended headers."""
    if info.type in EXTENDED:
        return info.size
    # A link or a folder may name a size, but has no body; tarfile reads one for unknown types.
    return size if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES else 0


def _next_header(body: int, stored: int, length: int, name: str, shard: object) -> int:
    """Return the offset after a body and its padding; ValueError where the file ends before."""
    if stored < 0 or body + stored > length:
        raise ValueError(_cut(shard, body - BLOCK, f"{name!r} needs {stored} bytes"))
    return body + -(-stored // BLOCK) * BLOCK


def _parsed(header: bytes, shard: object, at: int) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", ERRORS)
    except tarfile.HeaderError as error:
        what = "no uncompressed tar file" if at == 0 else f"damaged at byte {at}"
        raise ValueError(f"{shard} is {what} ({error}); write it again") from None
    # Incremental dumps have times where others have a name's first part, which tarfile overlooks.
    if header[257:265] == tarfile.GNU_MAGIC:
        info.name = header[:100].partition(b"\0")[0].decode("utf-8", ERRORS)
    return info


def _overrides(read: Read, info: tarfile.TarInfo, body: int, shard: object) -> dict[str, str]:
    """Return the fields that an extended header sets for the next member: its path, its size."""
    if info.size > LONGEST_NAME:
        raise ValueError(f"{shard}: an extended header of {info.size} bytes at {body - BLOCK}")
    data = read(info.size, body)
    if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        record = "path" if info.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
        return {record: data.rstrip(b"\0").decode("utf-8", ERRORS)}
    found = dict(_pax_records(data)) if info.type in PAX else {}
    if not SIZE.fullmatch(found.get("size", "0")):
        raise ValueError(f"{shard}: an extended header at {body - BLOCK} gives no size")
    return found


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


def _cut(shard: object, at: int, what: str) -> str:
    return f"{shard} is truncated: at byte {at} it {what}; copy the shard again"
