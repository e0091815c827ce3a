"""The log of a preparation: what is made, and each shard that is finished, a JSON line each.

It lies in the folder of the shards. Only the process that was started writes it, a line once the
shard is on the disk; so one that was killed goes on where it was. Nobody else may write the folder
meanwhile: the file is locked as long as it is open.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...workers.sources.cache_files import replace_file
from ...workers.sources.failures import SkippedSample
from .shards import WrittenShard

NAME = "prepare.log"


class PreparationLog:
    """The open log of a folder: `about`, what is made there, and the finished shards by number."""

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        self.finished: dict[int, WrittenShard] = {}
        self._handle = handle
        lines = list(_parsed(os.pread(handle, os.fstat(handle).st_size, 0)))
        if lines and "shard" not in lines[0]:
            self.about = lines[0]
        for line in lines[1:] if self.about else ():
            self.finished[line["shard"]] = _shard_of(line)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Write what is made, of a folder in which nothing is."""
        os.ftruncate(self._handle, 0)
        self.about = dict(about)
        self._append(self.about)

    def add(self, number: int, shard: WrittenShard) -> None:
        """Write that a shard is finished."""
        self.finished[number] = shard
        self._append(_line(number, shard))

    def end(self) -> None:
        """Write the shards in their order, so that the file is the same however it came about."""
        shards = [_line(number, self.finished[number]) for number in sorted(self.finished)]
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
    if not path.exists() and (others := sorted(each.name for each in folder.iterdir())):
        raise ValueError(
            f"{folder} has other files ({others[0]}{', ...' if others[1:] else ''}); prepare "
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


def _parsed(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue  # cut off
        if isinstance(found, dict):
            yield found


def _line(number: int, shard: WrittenShard) -> dict[str, Any]:
    skipped = [
        [index, each.key, each.reason, each.kind, each.source] for index, each in shard.skipped
    ]
    return {
        "shard": number,
        "samples": shard.samples,
        "size": shard.size,
        "digest": shard.digest,
        "skipped": skipped,
    }


def _shard_of(line: Mapping[str, Any]) -> WrittenShard:
    skipped = tuple((index, SkippedSample(*rest)) for index, *rest in line["skipped"])
    return WrittenShard(line["samples"], line["size"], line["digest"], skipped)
