"""Reads the files that records name, below a folder and, with a root, below that after links."""

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..sources.file_patterns import resolved

# What opening says of a name that is no file's: no fault of the disk.
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class MediaFolder:
    """The folder of the files that records name: `media`, by default that of a file.

    Raises ValueError where it leaves the root, FileNotFoundError where there is none.
    """

    def __init__(self, media: str | Path | None, file: Path, root: str | Path | None) -> None:
        folder = file.parent if media is None else resolved(Path(media), root)
        if not folder.is_dir():
            raise FileNotFoundError(f"media={str(media)!r:.200} is no folder; check the path")
        self.folder = os.path.abspath(folder)  # noqa: PTH100 links stay: the root is about those
        self.root = None if root is None else os.path.realpath(root)

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open a file to read; one on which the disk failed says so: see `check_reads`."""
        path = self._path(name)
        try:
            # Neither a pipe nor, where links were followed, another link.
            link = 0 if self.root is None else os.O_NOFOLLOW
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | link)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise ValueError(f"{name!r:.200} is no file below {self.folder}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise ValueError(f"{name!r:.200} is no plain file below {self.folder}")
        return io.BufferedReader(_WatchedFile(handle, "rb"))

    def _path(self, name: str) -> str:
        if "://" in name:
            raise ValueError(
                f"{name!r:.200} is a URL, and nothing is fetched: put the file below {self.folder}"
            )
        path = os.path.normpath(os.path.join(self.folder, name))  # noqa: PTH118 see below
        if not _is_below(path, self.folder):
            raise ValueError(f"{name!r:.200} leaves {self.folder}: name files below it, or media=")
        if self.root is not None:
            path = os.path.realpath(path)  # a Path takes five times as long
            if not _is_below(path, self.root):
                raise ValueError(f"{name!r:.200} leads out of the root {self.root}")
        return path


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


class _WatchedFile(io.FileIO):
    """A file that remembers that reading failed: image libraries call that a broken image."""

    failed: OSError | None = None

    def readinto(self, buffer: Any, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failed = error
            raise
