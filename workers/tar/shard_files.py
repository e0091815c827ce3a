"""Reads members of shards by offset, with a few files kept open.

An index says where a member is; nothing in its bytes says whose they are. So a shard that changed
after it was indexed must never be read as if it had not. Three things are compared: when a shard is
opened, and after each sample, size, mtime and inode with what this process saw first; and with each
member the header before it. Both are needed: a file may be replaced by one that looks the same from
outside, and a member may be written over in place. Looking after the bytes were read, and not
before, leaves no moment in between.

`pread` moves no file position, so threads and forked processes share the files freely; pickling
leaves them behind.
"""

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, Self
from zlib import crc32

from ..sources.failures import DataChangedError
from .headers import BLOCK, Member

READ_WHOLE = 1 << 15
LARGE = 1 << 16


class _Opened:
    """A file descriptor that is closed with its last user."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, _close: Any = os.close) -> None:
        if hasattr(self, "fd"):
            _close(self.fd)


class FileState(NamedTuple):
    """A file as seen from outside; None is not known, and equal to anything."""

    size: int
    mtime_ns: int | None
    inode: int | None

    @classmethod
    def of(cls, file: Path | int) -> Self:
        """Return the state of a path or descriptor."""
        found = os.stat(file)  # noqa: PTH116 Path.stat takes five times as long
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)

    def is_like(self, other: Self) -> bool:
        """Return whether all that is known is the same."""
        return self == other or all(b in (a, None) for a, b in zip(self, other, strict=True))


class ShardFiles:
    """The shards that were read last, at most `limit` open at once.

    `sizes` of shards are known from elsewhere: mtime and inode may differ from process to process,
    as hosts have copies, so they are compared with what this process saw first.
    """

    def __init__(self, limit: int = 64, sizes: Mapping[Path, int] = MappingProxyType({})) -> None:
        self.limit = limit
        self._opened: OrderedDict[Path, _Opened] = OrderedDict()
        self._seen = {path: FileState(size, None, None) for path, size in sizes.items()}
        self._lock = threading.Lock()

    def note(self, paths: Iterable[Path]) -> None:
        """Take the shards as they are now; to be called before they are indexed."""
        with self._lock:
            self._opened.clear()
            # What is in a store is compared with each read (stored_shards.py).
            self._seen = {path: FileState.of(path) for path in paths if isinstance(path, Path)}

    def has_changed(self, path: Path) -> bool:
        """Return whether a shard is not as it was first seen here."""
        return isinstance(path, Path) and not FileState.of(path).is_like(self._seen[path])

    def check(self, path: Path) -> None:
        """Raise DataChangedError where a shard is not as it was first seen here."""
        if path in self._seen and self.has_changed(path):
            raise DataChangedError.at(str(path))

    def read(self, path: Path, member: Member) -> bytes:
        """Return a member's bytes; OSError, which names the shard, where they are not there."""
        if member.size > LARGE:
            # Not together, since that takes a copy.
            self._check_header(path, member, self.read_at(path, member.offset - BLOCK, BLOCK))
            return self.read_at(path, member.offset, member.size)
        data = self.read_at(path, member.offset - BLOCK, BLOCK + member.size)
        self._check_header(path, member, data[:BLOCK])
        return data[BLOCK:]

    def piece(self, path: Path, member: Member) -> BinaryIO:
        """Return a file over a member's bytes; of a large one only what is asked for is read."""
        if member.size <= READ_WHOLE:
            return io.BytesIO(self.read(path, member))
        self._check_header(path, member, self.read_at(path, member.offset - BLOCK, BLOCK))
        read = partial(self.read_at, path)
        return io.BufferedReader(MemberFile(read, member.offset, member.size))

    def _check_header(self, path: Path, member: Member, header: bytes) -> None:
        if crc32(header) != member.header:
            what = f"there is another member at byte {member.offset - BLOCK}"
            raise DataChangedError.at(str(path), what)

    def read_at(self, path: Path, offset: int, size: int) -> bytes:
        """Return bytes of a shard; OSError, which names it, where they are not there."""
        try:
            return self._read_all(path, offset, size)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def _read_all(self, path: Path, offset: int, size: int) -> bytes:
        opened = self._open(path)
        data = os.pread(opened.fd, size, offset)
        while len(data) < size:
            more = os.pread(opened.fd, size - len(data), offset + len(data))
            if not more:
                raise DataChangedError.at(str(path), f"it ends before byte {offset + size}")
            data += more
        return data

    def _open(self, path: Path) -> _Opened:
        with self._lock:
            opened = self._opened.get(path)
            if opened is None:
                opened = _Opened(path)
                state = FileState.of(opened.fd)
                if not state.is_like(self._seen.get(path, state)):
                    raise DataChangedError.at(str(path))
                self._seen[path], self._opened[path] = state, opened
            self._opened.move_to_end(path)
            if len(self._opened) > self.limit:
                self._opened.popitem(last=False)
            return opened

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "sizes": {path: s.size for path, s in self._seen.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


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
