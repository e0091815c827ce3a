"""Reads row groups of parquet files; the last that were read stay, within a bound of bytes.

A row group is the least that parquet can be read by. Samples of a shuffled epoch lie anywhere, so a
row costs its whole group unless that is still held: who writes the files decides, by the size of
row groups, what a sample takes (source-parquet.md). Files are opened where they are first read
from, after a fork, and by one thread: pyarrow's own threads do not live on in a forked process.
"""

import importlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ..sources.fingerprint import digest_arrays

OPEN_FILES = 32
HELD_BYTES = 32 << 20
# A group is held as a whole, whatever the bound: one that is larger is no way to store samples.
LARGEST_GROUP = 2 << 30
TAIL = 8  # length of the footer, and b"PAR1"


class RowGroups:
    """The row groups that were read last; threads may ask at once, and wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._files: OrderedDict[Path, Any] = OrderedDict()
        self._held: OrderedDict[tuple[Path, int], Any] = OrderedDict()
        self._bytes = 0

    def read(self, path: Path, group: int, columns: Sequence[str]) -> Any:
        """Return a row group as an Arrow table; ValueError where it is damaged or too large."""
        with self._lock:
            if self._process != os.getpid():
                self._files.clear()
                self._process = os.getpid()
            table = self._held.get((path, group))
            if table is None:
                table = self._read(path, group, columns)
                self._bytes += table.nbytes
                self._held[path, group] = table
            self._held.move_to_end((path, group))
            while self._bytes > HELD_BYTES and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1].nbytes
            return table

    def _read(self, path: Path, group: int, columns: Sequence[str]) -> Any:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = open_file(path)
        self._files.move_to_end(path)
        if len(self._files) > OPEN_FILES:
            self._files.popitem(last=False)
        size = file.metadata.row_group(group).total_byte_size
        if size > LARGEST_GROUP:
            raise ValueError(
                f"row group {group} has {size >> 20} MiB, and is read as a whole for each of its "
                "samples: write the file again with row_group_size=16"
            )
        return read_columns(path, f"row group {group}", file.read_row_group, group, columns)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


def open_file(path: Path) -> Any:
    """Return a pyarrow ParquetFile; ValueError for a file that is none, OSError from the disk."""
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, pre_buffer=False)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:
        raise describe_fault(error, path, "no parquet file") from error


def read_columns(path: Path, place: str, read: Any, *arguments: Any) -> Any:
    """Return what a read of pyarrow gives, by this thread alone; ValueError for damaged pages."""
    try:
        return read(*arguments, use_threads=False)
    except (OSError, ValueError, NotImplementedError) as error:
        raise describe_fault(error, path, f"{place} is damaged") from error


def read_footer(path: Path, file: Any) -> tuple[Int64, str]:
    """Return the end of each row group (groups,), and a hash of all that a file's footer says."""
    about = file.metadata
    counts = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    with path.open("rb") as raw:
        raw.seek(-TAIL, os.SEEK_END)
        raw.seek(-TAIL - int.from_bytes(raw.read(4), "little"), os.SEEK_END)
        footer = raw.read()
    return np.cumsum(counts, dtype=np.int64), digest_arrays(footer)


def describe_fault(error: Exception, path: Path, summary: str) -> Exception:
    """Return the error of a disk with the file's name, and any other of pyarrow's as a fact."""
    if isinstance(error, OSError) and error.errno is not None:
        error.filename = error.filename or str(path)
        return error
    if "crypt" in str(error):
        return ValueError(f"{path} is encrypted, and is not read: write it without encryption")
    (first, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return ValueError(f"{summary}: {first:.200}")
