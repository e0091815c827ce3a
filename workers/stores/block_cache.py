"""Keeps blocks of objects on the local disk, for all processes of a host, within a bound.

A block is a file with a checksum, under a name made of the object's URL and version: a version that
is gone is never asked for again, and is removed in its turn. Files are put in place whole. A file
that is cut off or damaged is a block that is not there; a disk that is full means no cache.

Those used longest ago go first. A process looks at the folder when it has written a part of the
bound, and leaves it four fifths full: what many processes write between two looks has room.
"""

import fcntl
import logging
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from ..sources.cache_files import cache_folder, replace_file
from .ranges import Range

logger = logging.getLogger(__name__)
BLOCK = 1 << 20
CHECKSUM_BYTES = 4
Fetch = Callable[[Range], bytes]


class BlockCache:
    """Blocks below a folder, of at most `most` bytes in all."""

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "blocks"
        self._most = most
        self._unseen = most  # the folder may be full already

    def read(self, url: str, version: str, size: int, wanted: Range, fetch: Fetch) -> bytes:
        """Return a range of an object: what is not here of its blocks is fetched, and kept."""
        first, last = wanted[0] // BLOCK, (wanted[1] - 1) // BLOCK
        name = blake2b(f"{url}\0{version}\0{size}".encode(), digest_size=16).hexdigest()
        paths = [self._folder / name[:2] / f"{name}-{block}" for block in range(first, last + 1)]
        blocks = [_read_block(path) for path in paths]
        missing = [first + place for place, block in enumerate(blocks) if block is None]
        if missing:
            # One request, also where one in the middle is here.
            start, end = missing[0] * BLOCK, min((missing[-1] + 1) * BLOCK, size)
            data = fetch((start, end))
            for block in missing:
                blocks[block - first] = data[block * BLOCK - start :][:BLOCK]
                self._keep(paths[block - first], blocks[block - first] or b"")
        found = b"".join(block or b"" for block in blocks)
        return found[wanted[0] - first * BLOCK :][: wanted[1] - wanted[0]]

    def _keep(self, path: Path, block: bytes) -> None:
        if self._most <= 0:
            return
        if not replace_file(path, block + zlib.crc32(block).to_bytes(CHECKSUM_BYTES, "little")):
            logger.warning("%s cannot be written: blocks are kept no more", self._folder)
            self._most = 0
        self._unseen += len(block)
        if self._unseen >= self._most // 64:
            self._unseen = 0
            with suppress(OSError):
                _evict(self._folder, self._most)


def _read_block(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
        block, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
        if not block or zlib.crc32(block) != int.from_bytes(checksum, "little"):
            return None
        os.utime(path)  # used now: it is among the last to go
    except OSError:
        return None
    return block


def _evict(folder: Path, most: int) -> None:
    """Remove the blocks used longest ago, down to four fifths; nothing where another is at it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        found = list[tuple[float, int, str]]()
        for inner in os.scandir(folder):
            for entry in os.scandir(inner) if inner.is_dir() else ():
                with suppress(FileNotFoundError):
                    state = entry.stat()
                    found.append((state.st_mtime, state.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found) if total > most - most // 5 else ():
            if total <= most - most // 5:
                break
            with suppress(FileNotFoundError):
                Path(path).unlink()
            total -= size
