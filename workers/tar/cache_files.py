"""Reads and writes files kept between runs: beside their shard, or in a cache folder.

Such a file is only ever a shortcut. It is replaced as a whole, so that readers see the old one or
the new one; one that is damaged or about another state of the shard is made again; one that
cannot be written is done without.
"""

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

FORMAT = 2  # of all kept files
Stamp = tuple[int, int]


def identity(shard: Path) -> Stamp:
    """Return what identifies a state of a file: its size, and its mtime in nanoseconds."""
    state = shard.stat()
    return state.st_size, state.st_mtime_ns


def kept_path(shard: Path, suffix: str, cache: Path | None = None) -> Path:
    """Return where the file "SHARD.suffix" that describes a shard belongs.

    The first of: the folder `cache`, $COUNTERPOISE_CACHE, the shard's own folder where it may be
    written to, ~/.cache/counterpoise. In a cache folder the name holds a hash of the shard's path.
    """
    named = cache or os.environ.get("COUNTERPOISE_CACHE")
    if not named and _may_write(shard.parent):
        return shard.with_name(f"{shard.name}.{suffix}")
    folder = Path(named) if named else Path.home() / ".cache" / "counterpoise"
    place = hashlib.blake2b(os.fsencode(shard.resolve()), digest_size=8).hexdigest()
    return folder / f"{shard.name}.{place}.{suffix}"


def open_kept(path: Path) -> BinaryIO:
    """Open a kept file to read; OSError for a link, which may lead out of the root, or a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "a kept file is a plain file", str(path))
    return os.fdopen(handle, "rb")


def replace_file(path: Path, data: bytes) -> bool:
    """Replace a file as a whole; return whether that was possible."""
    return _put(path, data, Path.replace)


def remove_file(path: Path) -> None:
    """Remove a file, if there is one and that is possible."""
    with suppress(OSError):
        path.unlink()


def begin_file(path: Path, data: bytes) -> bool:
    """Make a file that holds `data` from its first moment, unless there is one already."""
    return _put(path, data, lambda temporary, final: final.hardlink_to(temporary))


def _put(path: Path, data: bytes, place: Callable[[Path, Path], object]) -> bool:
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)
        place(temporary, path)
    except OSError:
        return False
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return True


def _may_write(folder: Path) -> bool:
    """Return whether a folder is meant to be written to, by its mode: root may write anywhere."""
    try:
        return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
    except OSError:
        return False
