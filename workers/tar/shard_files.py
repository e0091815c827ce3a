"""Reads members of shards by offset, from local files and from stores.

With each member the header before it is compared with the one that was indexed, beside what
`DataFiles` and stores compare of the whole file: a member may be written over in place.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from ..sources.failures import DataChangedError
from .headers import BLOCK, Member
from .members import holds_media

LOCAL_WHOLE_BYTES = 1 << 15
Range = tuple[int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes]]


class ShardReader(NamedTuple):
    """How a shard is read: its name in errors, and what reads ranges (start, end).

    A probe reads the first `head_bytes` of an image, video or sound of more than `whole_bytes`.
    """

    name: str
    read: ReadRanges
    whole_bytes: int = LOCAL_WHOLE_BYTES
    head_bytes: int = 0


def first_ranges(
    members: Sequence[Member], headers: bool, whole_bytes: int, head_bytes: int
) -> list[Range]:
    """Return the ranges of members that are read first; headers: media are only probed."""
    ranges = list[Range]()
    for member in members:
        is_in_parts = headers and member.size > whole_bytes and holds_media(member)
        size = head_bytes if is_in_parts else member.size
        ranges.append((member.offset - BLOCK, member.offset + size))
    return ranges


def read_members(shard: ShardReader, members: Sequence[Member], headers: bool) -> dict[str, Any]:
    """Return members by extension, as the shard has them; headers: media as files, to be probed.

    Raises OSError, which names the shard, where they are not there or it has changed.
    """
    parts = dict[str, Any]()
    ranges = first_ranges(members, headers, shard.whole_bytes, shard.head_bytes)
    for member, data in zip(members, shard.read(ranges), strict=True):
        if crc32(data[:BLOCK]) != member.header_crc:
            fault = f"there is another member at byte {member.offset - BLOCK}"
            raise DataChangedError.at(shard.name, fault)
        body: Any = data[BLOCK:]
        if headers and holds_media(member):
            if len(body) == member.size:
                body = io.BytesIO(body)
            else:
                buffer_bytes = max(shard.head_bytes, io.DEFAULT_BUFFER_SIZE)
                body = io.BufferedReader(MemberFile(shard.read, member, body), buffer_bytes)
        parts[member.extension] = body
    return parts


class MemberFile(io.RawIOBase):
    """A file over a member, of which the first bytes are here."""

    def __init__(self, read: ReadRanges, member: Member, head: bytes) -> None:
        super().__init__()
        self._read, self._begin, self._size, self._head = read, member.offset, member.size, head
        self._at = 0
        self.failed: OSError | None = None  # for check_reads

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; an OSError is also kept as `failed`."""
        count = max(0, min(len(buffer), self._size - self._at))
        data = self._head[self._at : self._at + count]
        if len(data) < count:
            try:
                [data] = self._read([(self._begin + self._at, self._begin + self._at + count)])
            except OSError as error:
                self.failed = error
                raise
        buffer[:count] = data
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; ValueError before the first byte."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._at = start + offset
        return self._at
