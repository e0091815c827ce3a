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
from typing import Any

from .failures import DataChangedError

MOST_OPEN = 64


class _Opened:
    """A file descriptor that is closed with its last user."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, _close: Any = os.close) -> None:
        if hasattr(self, "fd"):
            _close(self.fd)


def _read_state(file: Path | int) -> tuple[int, ...]:
    """Return size, mtime in nanoseconds and inode of a path or descriptor."""
    state = os.stat(file)  # noqa: PTH116 Path.stat takes five times as long
    return state.st_size, state.st_mtime_ns, state.st_ino


class DataFiles:
    """The files of a data set, those that were read last open; what is not local is left out."""

    def __init__(self) -> None:
        self._opened: OrderedDict[Path, _Opened] = OrderedDict()
        self._seen: dict[Path, tuple[int, ...]] = {}  # states, or what is known of them
        self._lock = threading.Lock()

    def note(self, paths: Iterable[Path]) -> None:
        """Take the files as they are now; to be called before they are indexed."""
        with self._lock:
            self._opened.clear()
            # What is in a store is compared with each read (tar/stored_shards.py).
            self._seen = {path: _read_state(path) for path in paths if isinstance(path, Path)}

    def has_changed(self, path: Path) -> bool:
        """Return whether a file is not as it was first seen here."""
        return path in self._seen and not self._is_as_seen(path, _read_state(path))

    def _is_as_seen(self, path: Path, state: tuple[int, ...]) -> bool:
        seen = self._seen.get(path, ())
        return state[: len(seen)] == seen

    def check(self, path: Path) -> None:
        """Raise DataChangedError where a file is not as it was first seen here."""
        if self.has_changed(path):
            raise DataChangedError.at(str(path))

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        """Return bytes of a file; OSError, which names it, where they are not there."""
        try:
            opened, data = self._open(path), b""
            while offset + size <= self._seen[path][0]:  # or nothing is allocated for it
                more = os.pread(opened.fd, size - len(data), offset + len(data))
                data = data + more if data else more
                if len(data) == size:
                    return data
                if not more:
                    break
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        raise DataChangedError.at(str(path), f"it ends before byte {offset + size}")

    def _open(self, path: Path) -> _Opened:
        with self._lock:
            opened = self._opened.get(path)
            if opened is None:
                opened = _Opened(path)
                state = _read_state(opened.fd)
                if not self._is_as_seen(path, state):
                    raise DataChangedError.at(str(path))
                self._seen[path], self._opened[path] = state, opened
            self._opened.move_to_end(path)
            if len(self._opened) > MOST_OPEN:
                self._opened.popitem(last=False)
            return opened

    def __getstate__(self) -> dict[Path, tuple[int, ...]]:
        # mtime and inode may differ from process to process, as hosts have copies: they are
        # compared with what the other process sees first.
        return {path: state[:1] for path, state in self._seen.items()}

    def __setstate__(self, seen: dict[Path, tuple[int, ...]]) -> None:
        self.__init__()  # type: ignore[misc]
        self._seen = seen


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
