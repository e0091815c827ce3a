"""Reads shards in a store: headers to index them, and members of the samples that are next.

Every request takes time, whatever it asks for, so as few as possible are made: headers that are
near to each other are read with what lies between them, a sample's members at once, and the members
of the next samples while these are worked on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from .headers import BLOCK, Member
from .shard_files import ShardReader

if TYPE_CHECKING:
    from ..stores.files import StoreFile

# A probe reads so much of a large image, video or sound at once, and of others all.
HEAD = 1 << 16
STORE_WHOLE_BYTES = 1 << 18
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
            self._data = self._file.read_range(at, width) if width else b""
            self._start, self._asked = at, 0
        self._asked += 1
        return self._data[at - self._start : end - self._start]


def read_beside(shard: "StoreFile", suffix: str) -> tuple[str, bytes] | None:
    """Return the name and bytes of the object SHARD.suffix; None where there is none to read."""
    from ..stores.files import open_url

    if "?" in shard.url:
        return None
    try:
        index = open_url(f"{shard.url}.{suffix}")
        if index.size > min(shard.size, MOST_INDEX_BYTES):
            return None
        return str(index), index.read_range(0, index.size)
    except (FileNotFoundError, PermissionError):
        return None


def are_there(shard: "StoreFile", members: Sequence[Member]) -> bool:
    """Return whether headers of members are what an index says."""
    from ..stores.files import read_ranges

    headers = read_ranges([(shard, member.offset - BLOCK, member.offset) for member in members])
    return [crc32(header) for header in headers] == [member.header_crc for member in members]


def stored_reader(shard: "StoreFile") -> ShardReader:
    """Return what reads a shard's members; DataChangedError where it is not as it was."""
    from ..stores.files import read_ranges

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return read_ranges([(shard, *span) for span in ranges])

    return ShardReader(str(shard), read, STORE_WHOLE_BYTES, HEAD)
