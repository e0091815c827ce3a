"""Reads members of local shards by offset.

With each member the header before it is compared with the one that was indexed, beside what
`DataFiles` compares of the whole file: a member may be written over in place.
"""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from ..sources.data_files import DataFiles
from ..sources.failures import DataChangedError
from .headers import BLOCK, Member
from .members import holds_media

READ_WHOLE = 1 << 15
LARGE = 1 << 16


def read_local(
    files: DataFiles, path: Path, members: Sequence[Member], headers: bool
) -> dict[str, Any]:
    """Return members by extension, as they are in a local shard; with `headers` media as files.

    Raises OSError, which names the shard, where they are not there or it has changed.
    """
    found = {
        each.extension: (_open_member if headers and holds_media(each) else _read_member)(
            files, path, each
        )
        for each in members
    }
    files.check(path)
    return found


def _read_member(files: DataFiles, path: Path, member: Member) -> bytes:
    if member.size > LARGE:
        # Not together, since that takes a copy.
        check_header(path, member, files.read_at(path, member.offset - BLOCK, BLOCK))
        return files.read_at(path, member.offset, member.size)
    data = files.read_at(path, member.offset - BLOCK, BLOCK + member.size)
    check_header(path, member, data[:BLOCK])
    return data[BLOCK:]


def _open_member(files: DataFiles, path: Path, member: Member) -> BinaryIO:
    """Return a file over a member's bytes; of a large one only what is asked for is read."""
    if member.size <= READ_WHOLE:
        return io.BytesIO(_read_member(files, path, member))
    check_header(path, member, files.read_at(path, member.offset - BLOCK, BLOCK))
    read = partial(files.read_at, path)
    return io.BufferedReader(MemberFile(read, member.offset, member.size))


def check_header(shard: object, member: Member, header: bytes) -> None:
    """Raise DataChangedError where another header lies before a member than was indexed."""
    if crc32(header) != member.header:
        what = f"there is another member at byte {member.offset - BLOCK}"
        raise DataChangedError.at(str(shard), what)


class MemberFile(io.RawIOBase):
    """A file over `size` bytes from `offset` of one that `read(offset, size)` reads."""

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        super().__init__()
        self._read, self._offset, self._size = read, offset, size
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
        if count:
            try:
                buffer[:count] = self._read(self._offset + self._at, count)
            except OSError as error:
                self.failed = error
                raise
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; ValueError before the first byte."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._at = start + offset
        return self._at
