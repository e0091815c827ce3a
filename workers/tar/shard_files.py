"""Reads pieces of shards by offset, with a few files kept open.

`pread` moves no file position, so threads and forked processes share the files freely; pickling
leaves them behind.
"""

import errno
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

READ_WHOLE = 1 << 15


class _Opened:
    """A file descriptor that is closed with its last user."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class ShardFiles:
    """The shards that were read last, at most `limit` open at once."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._opened: OrderedDict[Path, _Opened] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes; OSError, which names it, where the file has fewer."""
        try:
            return self._read(path, offset, size)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def _read(self, path: Path, offset: int, size: int) -> bytes:
        opened = self._open(path)
        data = os.pread(opened.fd, size, offset)
        while len(data) < size:
            more = os.pread(opened.fd, size - len(data), offset + len(data))
            if not more:
                text = f"ends before byte {offset + size}; it changed after it was indexed"
                raise OSError(errno.EIO, text, str(path))
            data += more
        return data

    def piece(self, path: Path, offset: int, size: int) -> BinaryIO:
        """Return a file over a piece of a shard; of a large one only what is asked for is read."""
        if size <= READ_WHOLE:
            return io.BytesIO(self.read(path, offset, size))
        return io.BufferedReader(_Piece(self, path, offset, size))

    def _open(self, path: Path) -> _Opened:
        with self._lock:
            opened = self._opened.get(path)
            if opened is None:
                opened = self._opened[path] = _Opened(path)
            self._opened.move_to_end(path)
            if len(self._opened) > self.limit:
                self._opened.popitem(last=False)
            return opened

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def check_pieces(values: Iterable[object]) -> None:
    """Raise the OSError with which reading a piece among the values failed, if one did.

    Image libraries catch errors of the disk and say that the image is broken, or lacks something.
    """
    for value in values:
        failed = getattr(getattr(value, "raw", None), "failed", None)
        if isinstance(failed, OSError):
            raise failed


class _Piece(io.RawIOBase):
    def __init__(self, files: ShardFiles, path: Path, offset: int, size: int) -> None:
        super().__init__()
        self._files, self._path, self._offset, self._size = files, path, offset, size
        self._at = 0
        self.failed: OSError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        if count:
            try:
                buffer[:count] = self._files.read(self._path, self._offset + self._at, count)
            except OSError as error:
                self.failed = error
                raise
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._at = start + offset
        return self._at
