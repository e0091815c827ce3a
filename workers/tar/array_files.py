"""Reads and writes kept files of arrays: npz files with a checksum over every byte.

The checksum stands where a zip file has its comment, so that the file is still an npz to anything
that reads one. It is compared before the file is looked into: what a zip or a numpy header says
after a bit has flipped is never acted on. A file with a right checksum may still be wrong (written
by something else, or by a later version), so nothing in it may ask for more memory than the file
has bytes.
"""

import hashlib
import io
import logging
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .cache_files import FORMAT, Stamp, open_kept, remove_file, replace_file
from .members import decode_member

Arrays = dict[str, np.ndarray[Any, Any]]
logger = logging.getLogger(__name__)
NAME = f"counterpoise {FORMAT} ".encode()
DIGEST_BYTES = 16
SEAL_BYTES = len(NAME) + DIGEST_BYTES


class DamagedFileError(ValueError):
    """A kept file that cannot be used, whatever it describes: its path, and what is wrong."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def log_damaged(error: DamagedFileError) -> None:
    """Log that a kept file is made again."""
    logger.warning("%s: it is made again", error)


def read_arrays(path: Path, about: Stamp) -> Arrays | None:
    """Return the arrays of a file that was written about the same state of its shard.

    None where there is no such file, or it is about another state; DamagedFileError where it is no
    whole file of this format.
    """
    try:
        with open_kept(path) as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedFileError(path, f"cannot be read ({error.strerror or error})") from None
    arrays = _opened(path, data)
    stamp = arrays.pop("stamp", np.empty(0)).tolist()
    return arrays if stamp == list(about) else None


def write_arrays(path: Path, about: Stamp, arrays: Arrays) -> bool:
    """Replace a file of arrays as a whole; return whether that was possible."""
    file = io.BytesIO()
    np.savez(file, stamp=np.array(about, np.int64), **arrays)  # type: ignore[arg-type]
    return replace_file(path, _sealed(file.getvalue()))


def read_or_remove(
    path: Path, about: Stamp, report: Callable[[DamagedFileError], None] = log_damaged
) -> Arrays | None:
    """Return what `read_arrays` does; a damaged file is reported and removed, and is None too."""
    try:
        return read_arrays(path, about)
    except DamagedFileError as error:
        report(error)
        remove_file(path)
        return None


def _sealed(data: bytes) -> bytes:
    """Return a zip file with its checksum as the comment, which is its last bytes.

    >>> len(_sealed(bytes(22))) - 22 == SEAL_BYTES
    True
    """
    begun = data[:-2] + struct.pack("<H", SEAL_BYTES) + NAME
    return begun + _digest(begun)


def _opened(path: Path, data: bytes) -> Arrays:
    begun, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if not begun.endswith(NAME):
        raise DamagedFileError(path, "is cut off, or of another version")
    if _digest(begun) != digest:
        raise DamagedFileError(path, "is damaged (its checksum is wrong)")
    try:
        return _unzipped(data)
    except Exception as error:  # its maker is unknown, and so is what zipfile and numpy raise
        raise DamagedFileError(path, f"holds no arrays ({error!r:.200})") from None


def _unzipped(data: bytes) -> Arrays:
    arrays: Arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            # A compressed member may be a thousand times as long as the file.
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                raise ValueError(f"{info.filename!r:.80} is compressed or longer than the file")
            arrays[info.filename.removesuffix(".npy")] = decode_member("npy", archive.read(info))
    return arrays


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
