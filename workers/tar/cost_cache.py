"""Keeps probed costs beside a shard (or in the cache folder): a second run need not probe.

There is one file per shard and transform; its name has a fingerprint of both. It is a log: a line
of JSON with the shard's identity, then rows of int64 (index, costs, bytes or -1, checksum). Rows
are appended in one write, each as soon as it is known or some at a time: several workers may write
one file, and no worker has to finish it. Rows with a wrong checksum are left out, and the file is
then rewritten.
"""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .cache_files import FORMAT, begin_file, identity, kept_path, open_kept, replace_file

Row = tuple[int, ...]
# A link is not followed: it may lead out of the worker's root.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class CostsCache:
    """The known costs of one shard's `count` samples. A file that cannot be written is no error.

    A row goes to the file as soon as it is put; with `every` rows are gathered and written at
    once when there are `every` of them, and when `keep` is called.
    """

    def __init__(
        self, shard: Path, fingerprint: str, count: int, cache: Path | None = None, every: int = 1
    ) -> None:
        self.path = kept_path(shard, f"{fingerprint}.costs", cache)
        self.about = [FORMAT, *identity(shard), count]
        self.every = every
        self.resources: tuple[str, ...] = ()
        self._known: dict[int, Row] = {}
        self._gathered: list[bytes] = []
        self._begun = self._read()
        if not self._begun:
            with suppress(OSError):
                self.path.unlink()

    def get(self, index: int) -> tuple[dict[str, int], int | None] | None:
        """Return (cost, nbytes) of a sample, or None if it has not been probed."""
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
        self._gathered.append(_packed(index, self._known[index]))
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

    def _read(self) -> bool:
        """Read the file; return whether it describes this shard in its present state."""
        try:
            with open_kept(self.path) as file:
                head, _, body = file.read().partition(b"\n")
            about, resources = json.loads(head)
            names = tuple(map(str, resources))
        except (OSError, ValueError, TypeError):
            return False
        if about != self.about or not names:
            return False
        self.resources = names
        rows, whole = _rows(body, 8 * (len(names) + 3))
        self._known = {row[0]: row[1:] for row in rows if 0 <= row[0] < self.about[-1]}
        if not whole:
            kept = (_packed(index, row) for index, row in self._known.items())
            replace_file(self.path, self._head() + b"".join(kept))
        return True

    def _head(self) -> bytes:
        return json.dumps([self.about, self.resources]).encode() + b"\n"


def _packed(index: int, row: Row) -> bytes:
    body = struct.pack(f"<{len(row) + 1}q", index, *row)
    return body + struct.pack("<q", zlib.crc32(body))


def _rows(body: bytes, width: int) -> tuple[list[Row], bool]:
    """Return the rows with a right checksum, also after a torn one, and whether all have one."""
    rows, at, whole = list[Row](), 0, True
    while at < len(body):
        row = _unpacked(body[at : at + width], width)
        if row is not None:
            rows.append(row)
        whole = whole and row is not None
        at += 1 if row is None else width
    return rows, whole


def _unpacked(data: bytes, width: int) -> Row | None:
    """Return (index, costs..., bytes), or None for a row that was not written whole."""
    if len(data) != width or zlib.crc32(data[:-8]) != int.from_bytes(data[-8:], "little"):
        return None
    return struct.unpack(f"<{len(data) // 8 - 1}q", data[:-8])
