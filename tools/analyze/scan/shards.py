"""Opens tar shards for a scan, reads the source that a sample names, and explains broken shards."""

import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....workers.tar.dataset import TarDataset
from ....workers.tar.index import NAME
from .options import ScanOptions, cost_function, make_transform
from .rows import Failure, FailureKind

# Costs that are written to their file at once: a killed scan measures at most 63 samples again.
WRITE_EVERY = 64
TRUNCATED = re.compile(
    r"truncat|ends without|ends before|not enough image data|incomplete", re.IGNORECASE
)


class ShardDataset(TarDataset):
    """A shard that remembers the last sample read: its source is then known without a read."""

    keep_every = WRITE_EVERY
    last: Mapping[str, Any] = {}

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return a sample's members and remember them."""
        found = super().raw(index, headers)
        self.last = found
        return found

    def source_named(self, index: int, field: str) -> str:
        """Return the source that a sample's JSON names, "" if it names none."""
        raw = self.last
        try:
            # Costs that were kept are not read again, so another sample may have been the last.
            if raw.get("__key__") != self.key(index):
                raw = self.raw(index, headers=True)
        except (ValueError, OSError):
            return ""
        about = raw.get("json")
        found = about.get(field) if isinstance(about, Mapping) else None
        return str(found) if found is not None else ""


def open_shard(path: Path, options: ScanOptions) -> ShardDataset:
    """Open one shard with the options' transform; ValueError if it is no tar or is cut off."""
    return ShardDataset(
        [path], make_transform(options), cache=options.cache or None, cost=cost_function(options)
    )


def shard_series(path: Path) -> str:
    """Return the name that numbered shards share; the folder's name if there is only a number.

    >>> shard_series(Path("web-00012.tar")), shard_series(Path("laion/00012.tar"))
    ('web', 'laion')
    """
    stem = path.name.partition(".")[0].rstrip("0123456789").rstrip("-_")
    return stem or path.absolute().parent.name or path.name


def broken_shard(path: Path, reason: str) -> list[Failure]:
    """Return the failures of a shard that cannot be opened.

    If it is cut off, these are the samples before the cut, by name; otherwise the shard itself.
    """
    keys = _keys_before_cut(path) if TRUNCATED.search(reason) else []
    if not keys:
        return [Failure(path.name, path.name, "shard", reason)]
    return [Failure(key, path.name, "truncated", reason) for key in keys]


def failure_kind(reason: str) -> FailureKind:
    """Return "truncated" if the reason says that data are missing at an end."""
    return "truncated" if TRUNCATED.search(reason) else "unreadable"


def _keys_before_cut(path: Path) -> list[str]:
    keys: dict[str, None] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if match := NAME.fullmatch(member.name):
                    keys.setdefault(match[1])
    except (tarfile.TarError, OSError, EOFError):
        # The cut: what was read so far is the answer.
        pass
    return list(keys)
