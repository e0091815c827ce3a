"""Reads data files by offset, with a few kept open, and notices those that change.

An index says where a sample is; nothing in its bytes says whose they are. So a file that changed
after it was indexed must never be read as if it had not: when a file is opened, and after each
sample, size, mtime and inode are compared with what this process saw first. Looking after the bytes
were read, and not before, leaves no moment in between.

`pread` moves no file position, so threads and forked processes share the files freely; pickling
leaves them behind.
"""

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

from .failures import DataChangedError

MOST_OPEN = 64


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


class DataFiles:
    """The files of a data set, those that were read last open; what is not local is left out."""

    def __init__(self) -> None:
        self._opened: OrderedDict[Path, _Opened] = OrderedDict()
        self._seen: dict[Path, FileState] = {}
        self._lock = threading.Lock()

    def note(self, paths: Iterable[Path]) -> None:
        """Take the files as they are now; to be called before they are indexed."""
        with self._lock:
            self._opened.clear()
            # What is in a store is compared with each read (tar/stored_shards.py).
            self._seen = {path: FileState.of(path) for path in paths if isinstance(path, Path)}

    def has_changed(self, path: Path) -> bool:
        """Return whether a file is not as it was first seen here."""
        return path in self._seen and not FileState.of(path).is_like(self._seen[path])

    def check(self, path: Path) -> None:
        """Raise DataChangedError where a file is not as it was first seen here."""
        if self.has_changed(path):
            raise DataChangedError.at(str(path))

    def read_at(self, path: Path, offset: int, size: int) -> bytes:
        """Return bytes of a file; OSError, which names it, where they are not there."""
        try:
            return self._read_all(path, offset, size)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def _read_all(self, path: Path, offset: int, size: int) -> bytes:
        opened, data = self._open(path), b""
        while offset + size <= self._seen[path].size:  # or nothing is allocated for it
            more = os.pread(opened.fd, size - len(data), offset + len(data))
            data = data + more if data else more
            if len(data) == size:
                return data
            if not more:
                break
        raise DataChangedError.at(str(path), f"it ends before byte {offset + size}")

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
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
            return opened

    def __getstate__(self) -> dict[Path, int]:
        # mtime and inode may differ from process to process, as hosts have copies: they are
        # compared with what the other process sees first.
        return {path: state.size for path, state in self._seen.items()}

    def __setstate__(self, sizes: dict[Path, int]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seen = {path: FileState(size, None, None) for path, size in sizes.items()}


def check_reads(values: Iterable[object]) -> None:
    """Raise the OSError with which reading a file among the values failed, if one did.

    Image libraries catch errors of the disk and say that the image is broken, or lacks something.
    A file that has failed says so: `failed` of the raw file below its buffer.
    """
    for value in values:
        if isinstance(value, io.BufferedReader):
            failed = getattr(value.raw, "failed", None)
            if isinstance(failed, OSError):
                raise failed
