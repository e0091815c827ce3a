"""Reads and writes files kept between runs: beside their shard, or in a cache folder.

Such a file is only ever a shortcut. It is replaced as a whole, so that readers see the old one or
the new one; one that is damaged or about another state of the shard is made again; one that
cannot be written is done without.

Files of arrays are npz files with a checksum over every byte. It stands where a zip file has its
comment, so that the file is still an npz to anything that reads one. It is compared before the file
is looked into: what a zip or a numpy header says after a bit has flipped is never acted on. A file
with a right checksum may still be wrong (written by something else, or by a later version), so
nothing in it may ask for more memory than the file has bytes.
"""

import errno
import fcntl
import hashlib
import io
import logging
import math
import os
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_array_header_2_0, read_magic

FORMAT_VERSION = 3  # of all kept files, and of what is found in a shard
Stamp = tuple[int, int]


def identity(shard: Path | Any) -> Stamp:
    """Return what identifies a state of a file: its size, and its mtime in nanoseconds.

    shard: a path, or a StoreFile (workers/stores/files.py), whose text is its URL.
    """
    if not isinstance(shard, Path):
        stamp: Stamp = shard.stamp
        return stamp
    state = shard.stat()
    return state.st_size, state.st_mtime_ns


def kept_path(shard: Path | Any, suffix: str, cache: Path | None = None) -> Path:
    """Return where the file "SHARD.suffix" that describes a shard belongs.

    The first of: the folder `cache`, $COUNTERPOISE_CACHE, the shard's own folder where it may be
    written to, ~/.cache/counterpoise. In a cache folder the name holds a hash of the shard's path,
    or URL.
    """
    named_folder = cache or os.environ.get("COUNTERPOISE_CACHE")
    if isinstance(shard, Path) and not named_folder and _may_write(shard.parent):
        return shard.with_name(f"{shard.name}.{suffix}")
    location = os.fsencode(shard.resolve() if isinstance(shard, Path) else str(shard))
    location_hash = hashlib.blake2b(location, digest_size=8).hexdigest()
    return (cache or cache_folder()) / f"{shard.name}.{location_hash}.{suffix}"


def cache_folder() -> Path:
    """Return the folder for what is not kept beside data: $COUNTERPOISE_CACHE, or in ~/.cache."""
    named = os.environ.get("COUNTERPOISE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "counterpoise"


def replace_file(path: Path, data: bytes) -> bool:
    """Replace a file as a whole; return whether that was possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_file(path) as file:
            file.write(data)
    except OSError:
        return False
    return True


def remove_file(path: Path) -> None:
    """Remove a file, if there is one and that is possible."""
    with suppress(OSError):
        path.unlink()


@contextmanager
def written_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that is put at a path once it is whole; else nothing stays of it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def lock_folder_of(path: Path) -> Iterator[None]:
    """Have others wait who would add to a kept file, where its folder can be locked (not on NFS).

    Elsewhere the later of two that write at once wins, and what the other found is found again.
    """
    handle = None
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _may_write(folder: Path) -> bool:
    """Return whether a folder is meant to be written to, by its mode: root may write anywhere."""
    try:
        return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
    except OSError:
        return False


Arrays = dict[str, np.ndarray[Any, Any]]
Kept = TypeVar("Kept")
logger = logging.getLogger(__name__)
MAGIC = f"counterpoise {FORMAT_VERSION} ".encode()
DIGEST_BYTES = 16
SEAL_BYTES = len(MAGIC) + DIGEST_BYTES


class DamagedFileError(ValueError):
    """A kept file that cannot be used, whatever it describes: its path, and what is wrong."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def log_damaged(error: DamagedFileError) -> None:
    """Log that a kept file is made again."""
    logger.warning("%s: it is made again", error)


def read_arrays(path: Path, stamp: Sequence[int]) -> Arrays | None:
    """Return the arrays of a file that was written with this stamp of its shard.

    None where there is no such file, or it has another stamp; DamagedFileError where it is no
    whole file of this format.
    """
    try:
        # A link may lead out of the root, and a pipe is waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "a kept file is a plain file")
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return None  # what this process lacks says nothing about the file
        raise DamagedFileError(path, f"cannot be read ({error.strerror or error})") from None
    arrays = unpack_arrays(path, data)
    stored_stamp = arrays.pop("stamp", np.empty(0)).tolist()
    return arrays if stored_stamp == list(stamp) else None


def write_arrays(path: Path, stamp: Sequence[int], arrays: Arrays) -> bool:
    """Replace a file of arrays as a whole; return whether that was possible."""
    file = io.BytesIO()
    np.savez(file, stamp=np.array(stamp, np.int64), **arrays)  # type: ignore[arg-type]
    return replace_file(path, _seal(file.getvalue()))


def read_or_remove(
    path: Path,
    stamp: Sequence[int],
    unpack: Callable[[Arrays], Kept | None],
    content: str,
    report: Callable[[DamagedFileError], None] = log_damaged,
) -> Kept | None:
    """Return what `unpack` makes of the arrays that `read_arrays` returns, or None.

    A file that is damaged, or of which unpack makes nothing, is reported and removed. content:
    what it should hold, for that report.
    """
    try:
        if (arrays := read_arrays(path, stamp)) is None:
            return None
        if (unpacked := unpack(arrays)) is not None:
            return unpacked
        raise DamagedFileError(path, f"holds no {content}")
    except DamagedFileError as error:
        report(error)
        remove_file(path)
        return None


def _seal(data: bytes) -> bytes:
    """Return a zip file with its checksum as the comment, which is its last bytes.

    >>> len(_seal(bytes(22))) - 22 == SEAL_BYTES
    True
    """
    sealed_part = data[:-2] + struct.pack("<H", SEAL_BYTES) + MAGIC
    return sealed_part + _digest(sealed_part)


def unpack_arrays(path: object, data: bytes) -> Arrays:
    """Return the arrays in the bytes of a file; DamagedFileError, which names it, for others."""
    sealed_part, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if not sealed_part.endswith(MAGIC):
        raise DamagedFileError(path, "is cut off, or of another version")
    if _digest(sealed_part) != digest:
        raise DamagedFileError(path, "is damaged (its checksum is wrong)")
    try:
        return _unzip(data)
    except Exception as error:  # its maker is unknown, and so is what zipfile and numpy raise
        raise DamagedFileError(path, f"holds no arrays ({error!r:.200})") from None


def _unzip(data: bytes) -> Arrays:
    arrays: Arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            # A compressed member may be a thousand times as long as the file.
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                raise ValueError(f"{info.filename!r:.80} is compressed or longer than the file")
            arrays[info.filename.removesuffix(".npy")] = read_npy(archive.read(info))
    return arrays


def read_npy(data: bytes) -> np.ndarray[Any, Any]:
    """Return an array; ValueError for one larger than its file: numpy allocates before it reads."""
    file = io.BytesIO(data)
    if not data.startswith(MAGIC_PREFIX):
        raise ValueError("no .npy file: it does not begin as one")
    version = read_magic(file)
    header = read_array_header_1_0 if version == (1, 0) else read_array_header_2_0
    shape, _, dtype = header(file)
    needed = math.prod(shape) * dtype.itemsize
    if needed > len(data):
        raise ValueError(f"the array says that it has {needed} bytes, its file has {len(data)}")
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
