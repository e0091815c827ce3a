"""The log of a preparation: what is made, and each shard that is finished, a JSON line each.

It lies in the folder of the shards. Only the process that was started writes it, a line once the
shard is on the disk; so one that was killed goes on where it was. No other process may write the
folder meanwhile: the file is locked as long as it is open.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ...workers.sources.cache_files import replace_file
from .shards import WrittenShard

NAME = "prepare.log"


class PreparationLog:
    """The open log of a folder: `about`, what is made there, and the finished shards by number."""

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        self.finished: dict[int, WrittenShard] = {}
        self._handle = handle
        for line in os.pread(handle, os.fstat(handle).st_size, 0).split(b"\n"):
            with suppress(ValueError, RecursionError):  # one that was cut off
                record = json.loads(line)
                if not self.about:
                    self.about = dict(record)
                else:
                    shard = msgspec.convert(record, WrittenShard)
                    self.finished[shard.number] = shard

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write what is made, of a folder in which nothing is."""
        os.ftruncate(self._handle, 0)
        self.about = dict(about)
        self._append(self.about)

    def add(self, shard: WrittenShard) -> None:
        """Write that a shard is finished."""
        self.finished[shard.number] = shard
        self._append(asdict(shard))

    def end(self) -> None:
        """Write the shards in their order, so that the file is the same however it came about."""
        shards = [asdict(self.finished[number]) for number in sorted(self.finished)]
        text = "".join(json.dumps(line) + "\n" for line in (self.about, *shards))
        if not replace_file(self.folder / NAME, text.encode()):
            raise OSError(f"{self.folder / NAME} cannot be written")

    def _append(self, line: Mapping[str, Any]) -> None:
        # A line before it that was cut off ends here, and is passed over.
        start = "\n" if os.fstat(self._handle).st_size else ""
        data = f"{start}{json.dumps(line)}\n".encode()
        if os.write(self._handle, data) < len(data):
            raise OSError(f"{self.folder / NAME} cannot be written: the disk is full")
        os.fsync(self._handle)


@contextmanager
def open_log(folder: Path) -> Iterator[PreparationLog]:
    """Open a folder's log, made if need be, and locked meanwhile.

    Raises ValueError for a folder that others use: with files that prepare did not write, or while
    another prepare writes there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    if not path.exists() and (names := sorted(path.name for path in folder.iterdir())):
        raise ValueError(
            f"{folder} has other files ({names[0]}{', ...' if names[1:] else ''}); prepare "
            "writes to an empty folder, or goes on in its own: give another one with --out"
        )
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another prepare writes to {folder}; wait for it, or end it"
            ) from None
        for left in folder.glob(".*.tar.*"):  # of one that was killed
            left.unlink(missing_ok=True)
        yield PreparationLog(folder, handle)
    finally:
        os.close(handle)
