"""Tar files of tests."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_tar(
    path: Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]], **options: Any
) -> Path:
    """Write members, by name, to a new tar; return its path. `options`: of tarfile.open."""
    pairs = members.items() if isinstance(members, Mapping) else members
    with tarfile.open(path, "w", **options) as tar:
        for name, content in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
