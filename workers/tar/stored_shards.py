"""Reads shards in a store: headers to index them, and members of the samples that are next.

Every request takes time, whatever it asks for, so as few as possible are made: headers that are
near to each other are read with what lies between them, a sample's members at once, and the members
of the next samples while these are worked on.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from .headers import BLOCK, Member
from .members import holds_media
from .shard_files import MemberFile, check_header

if TYPE_CHECKING:
    from ..stores.files import StoreFile

# A probe reads so much of a large image, video or sound at once, and of others all.
HEAD = 1 << 16
READ_WHOLE = 1 << 18
# Headers nearer than this are read with the bodies between them, so much at once.
NEAR, WIDE, NARROW = 1 << 18, 8 << 20, 1 << 13
MOST_INDEX_BYTES = 1 << 28


class HeaderWindow:
    """Reads a shard from front to back, as `os.pread(fd, size, at)` would."""

    def __init__(self, file: "StoreFile") -> None:
        self._file = file
        self._start, self._data = 0, b""
        self._asked = 1
        self._width = HEAD

    def __call__(self, size: int, at: int) -> bytes:
        """Return `size` bytes, fewer where the shard ends before."""
        end = min(at + size, self._file.size)
        if at < self._start or end > self._start + len(self._data):
            distance = abs(at - self._start) // self._asked
            self._width = self._width if not at else WIDE if distance <= NEAR else NARROW
            width = max(end - at, min(self._width, self._file.size - at), 0)
            self._data = self._file.read_at(at, width) if width else b""
            self._start, self._asked = at, 0
        self._asked += 1
        return self._data[at - self._start : end - self._start]


def read_beside(shard: "StoreFile", suffix: str) -> tuple[str, bytes] | None:
    """Return the name and bytes of the object SHARD.suffix; None where there is none to read."""
    from ..stores.files import open_url

    if "?" in shard.url:
        return None
    try:
        found = open_url(f"{shard.url}.{suffix}")
        if found.size > min(shard.size, MOST_INDEX_BYTES):
            return None
        return str(found), found.read_at(0, found.size)
    except (FileNotFoundError, PermissionError):
        return None


def are_there(shard: "StoreFile", members: Sequence[Member]) -> bool:
    """Return whether headers of members are what an index says."""
    from ..stores.files import read_ranges

    headers = read_ranges([(shard, each.offset - BLOCK, each.offset) for each in members])
    return all(crc32(header) == each.header for header, each in zip(headers, members, strict=True))


def wanted(
    shard: "StoreFile", members: Iterable[Member], headers: bool
) -> Iterator[tuple["StoreFile", int, int]]:
    """Yield what is read of members at first: a range with the header, and how much follows it."""
    for member in members:
        is_read_in_parts = headers and member.size > READ_WHOLE and holds_media(member)
        size = HEAD if is_read_in_parts else member.size
        yield shard, member.offset - BLOCK, member.offset + size


def read_members(shard: "StoreFile", members: Sequence[Member], headers: bool) -> dict[str, Any]:
    """Return members by extension, as they are in the file; with `headers` media as files.

    Raises DataChangedError where the shard, or what lies before a member, is not as it was.
    """
    from ..stores.files import read_ranges

    found = dict[str, Any]()
    ranges = list(wanted(shard, members, headers))
    for member, data in zip(members, read_ranges(ranges), strict=True):
        check_header(shard, member, data[:BLOCK])
        is_file = headers and holds_media(member)
        found[member.extension] = _opened(shard, member, data[BLOCK:]) if is_file else data[BLOCK:]
    return found


def _opened(shard: "StoreFile", member: Member, head: bytes) -> Any:
    """Return a file over a member, of which the first bytes are here."""
    if len(head) == member.size:
        return io.BytesIO(head)

    def read(at: int, size: int) -> bytes:
        start = at - member.offset
        known = head[start : start + size]
        return known if len(known) == size else shard.read_at(at, size)

    return io.BufferedReader(MemberFile(read, member.offset, member.size), HEAD)
