"""Keeps probed costs beside the data (or in the cache folder): a second run need not probe.

There is one file per file of the data and transform; its name has a fingerprint of both. It is a
log: a line of JSON with the format, the file's stamp, the names of the costs and a checksum, then
rows of int64 (index, costs, bytes or -1, checksum). Rows are appended in one write, each as soon as
it is known or some at a time: several workers may write one file, and no worker has to finish it.
Who misses a row looks first whether others have written more. A row's checksum begins with the
line's, so that rows count only under their own names. Rows with a wrong checksum are left out, as
are those that no probe can have given, and the file is then rewritten.
"""

import json
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from .cache_files import (
    FORMAT,
    Stamp,
    begin_file,
    kept_path,
    open_kept,
    remove_file,
    replace_file,
)
from .costs import MAX_COST

logger = logging.getLogger(__name__)
AGAIN = "the costs are measured again"
Row = tuple[int, ...]
# Stands for the bytes read of a file that is about something else: it is not looked at again.
NOT_OURS = 1 << 63
# A link is not followed: it may lead out of the worker's root.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class CostsCache:
    """The known costs of one file's `count` samples. A file that cannot be written is no error.

    `stamp` identifies the file's state, `fingerprint` all else that decides the costs. A row goes
    to the file as soon as it is put; with `every` rows are gathered and written at once when there
    are `every` of them, and when `keep` is called.
    """

    def __init__(
        self,
        file: Path,
        stamp: Stamp,
        fingerprint: str,
        count: int,
        cache: Path | None = None,
        every: int = 1,
    ) -> None:
        self.path = kept_path(file, f"{fingerprint}.costs", cache)
        self.about = [FORMAT, *stamp, count]
        self.every = every
        self.resources: tuple[str, ...] = ()
        self._known: dict[int, Row] = {}
        self._gathered: list[bytes] = []
        # So much of the file was read.
        self._size = 0
        read = self._read()
        self._begun = bool(read)
        if read is False:  # not where there was none: another worker may have begun it since
            remove_file(self.path)

    def get(self, index: int) -> tuple[dict[str, int], int | None] | None:
        """Return (cost, nbytes) of a sample, or None if it has not been probed."""
        if index not in self._known:
            self._read_more()
        row = self._known.get(index)
        if row is None:
            return None
        *cost, nbytes = row
        return dict(zip(self.resources, cost, strict=True)), None if nbytes < 0 else nbytes

    def put(self, index: int, cost: Mapping[str, int], nbytes: int | None) -> None:
        """Remember a sample's cost, here and soon in the file."""
        self.resources = self.resources or tuple(cost)
        if not self.resources or tuple(cost) != self.resources:
            return  # costs that differ in kind from sample to sample are not kept
        self._known[index] = (*cost.values(), -1 if nbytes is None else nbytes)
        self._gathered.append(_packed(index, self._known[index], self._seal()))
        if len(self._gathered) >= self.every:
            self.keep()

    def keep(self) -> None:
        """Write the rows that are not in the file yet."""
        rows = b"".join(self._gathered)
        self._gathered.clear()
        begun, self._begun = self._begun, self._begun or bool(rows)
        if not rows or (not begun and begin_file(self.path, self._head() + rows)):
            return
        with suppress(OSError):
            handle = os.open(self.path, APPEND)
            try:
                os.write(handle, rows)
            finally:
                os.close(handle)

    def _read(self) -> bool | None:
        """Read the file; return whether it describes this file in its present state, or None."""
        try:
            with open_kept(self.path) as file:
                head, _, body = file.read().partition(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            logger.warning("%s cannot be read (%s): %s", self.path, error.strerror, AGAIN)
            return False
        found = _parsed_head(head)
        if found is None:
            logger.warning("%s is damaged, or of another version: %s", self.path, AGAIN)
            return False
        about, names = found
        if about != self.about:
            return False
        self.resources = names
        if not self._take(body, len(head) + 1):
            self._rewrite()
        return True

    def _take(self, body: bytes, begin: int) -> bool:
        """Take the rows of the file's bytes from `begin` on; return whether all are right."""
        rows, end, whole = _rows(body, 8 * (len(self.resources) + 3), self._seal())
        known = [row for row in rows if _can_be(row, self.about[-1])]
        self._known.update((row[0], row[1:]) for row in known)
        self._size = begin + end
        return whole and len(known) == len(rows)

    def _read_more(self) -> None:
        """Read what other workers have written since, unless there is nothing."""
        with suppress(OSError):
            begin = self._size
            if self.path.lstat().st_size <= begin:
                return
            if not self._begun:
                self._begun = bool(self._read())
                self._size = self._size or NOT_OURS
                return
            with open_kept(self.path) as file:
                file.seek(begin)
                self._take(file.read(), begin)

    def _rewrite(self) -> None:
        logger.warning(
            "%s has damaged rows: all but %d samples are measured again",
            self.path,
            len(self._known),
        )
        seal = self._seal()
        kept = (_packed(index, row, seal) for index, row in self._known.items())
        data = self._head() + b"".join(kept)
        if replace_file(self.path, data):
            self._size = len(data)

    def _head(self) -> bytes:
        return json.dumps([self.about, self.resources, self._seal()]).encode() + b"\n"

    def _seal(self) -> int:
        return _checksum(self.about, self.resources)


def _checksum(about: object, resources: Iterable[str]) -> int:
    return zlib.crc32(json.dumps([about, list(resources)]).encode())


def _parsed_head(head: bytes) -> tuple[list[int], tuple[str, ...]] | None:
    """Return what a file's first line says it is about, and the costs' names; None if damaged."""
    try:
        about, resources, checksum = json.loads(head)
        is_whole = bool(resources) and checksum == _checksum(about, resources)
    except (ValueError, TypeError, RecursionError):
        return None
    return (about, tuple(resources)) if is_whole else None


def _can_be(row: Row, count: int) -> bool:
    """Return whether a row can be of one of `count` samples: its index, costs and bytes."""
    index, *costs, nbytes = row
    measured = -1 <= nbytes <= MAX_COST and all(0 <= cost <= MAX_COST for cost in costs)
    return measured and 0 <= index < count


def _packed(index: int, row: Row, seal: int) -> bytes:
    body = struct.pack(f"<{len(row) + 1}q", index, *row)
    return body + struct.pack("<q", zlib.crc32(body, seal))


def _rows(body: bytes, width: int, seal: int) -> tuple[list[Row], int, bool]:
    """Return the rows with a right checksum, also after a torn one, and where the last one ends.

    And whether all have one.
    """
    rows, at, end, whole = list[Row](), 0, 0, True
    while at < len(body):
        row = _unpacked(body[at : at + width], width, seal)
        if row is not None:
            rows.append(row)
            end = at + width
        whole = whole and row is not None
        at += 1 if row is None else width
    return rows, end, whole


def _unpacked(data: bytes, width: int, seal: int) -> Row | None:
    """Return (index, costs..., bytes), or None for a row that was not written whole."""
    if len(data) != width or zlib.crc32(data[:-8], seal) != int.from_bytes(data[-8:], "little"):
        return None
    return struct.unpack(f"<{len(data) // 8 - 1}q", data[:-8])
