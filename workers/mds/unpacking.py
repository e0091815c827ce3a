"""Unpacks compressed shards, once: samples are read by offset, which a compressed file has not."""

import bz2
import gzip
import importlib
import zlib
from pathlib import Path
from typing import Any

from ..sources.cache_files import kept_path, written_file

CHUNK = 1 << 20
PYARROW = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


def unpacked(path: Path, method: str, nbytes: int, cache: Path | None) -> Path:
    """Return the file that has a shard's `nbytes` bytes, made unless it is there.

    It is kept as costs are: in the cache folder, or beside the shard. Raises ValueError for another
    size, which is not written beyond what was said, and for methods that need pyarrow without it.
    """
    state = path.stat()
    final = kept_path(path, f"{state.st_size:x}-{state.st_mtime_ns:x}.unpacked", cache)
    if final.is_file() and not final.is_symlink() and final.stat().st_size == nbytes:
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        with written_file(final) as file, _opened(path, method, nbytes) as source:
            left = nbytes + 1
            while left and (data := source.read(min(left, CHUNK))):
                left -= file.write(data)
            if left != 1:
                raise ValueError(f"it has {'more' if not left else 'less'} than {nbytes} bytes")
    except (ValueError, EOFError, OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:
            raise  # of the disk
        raise ValueError(f"{path} cannot be unpacked: {error}; copy it again") from None
    return final


def _opened(path: Path, method: str, nbytes: int) -> Any:
    if method in ("gz", "bz2"):
        return gzip.open(path) if method == "gz" else bz2.open(path)
    if method not in PYARROW:
        raise ValueError(f"it is compressed by {method!r:.40}, which is not known here")
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
    except ImportError:
        raise ValueError(
            f"{method} needs pyarrow: pip install 'counterpoise[parquet]', or decompress the shards"
        ) from None
    if method == "snappy":  # as one block, which is no smaller than a part of what it holds
        if nbytes > 64 * path.stat().st_size:
            raise ValueError(f"it cannot hold {nbytes} bytes")
        return pyarrow.BufferReader(pyarrow.decompress(path.read_bytes(), nbytes, PYARROW[method]))
    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), PYARROW[method])
