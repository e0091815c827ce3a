"""Probed costs, kept beside a shard (or in the cache folder), so that a second run need not probe.

One file for each shard and transform: its name holds the transform's fingerprint, its contents
the shard's digest. Several workers may write the same file: each first takes in what stands there,
then replaces it as a whole. What a race loses is only probed again.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .kept_arrays import Arrays, identity, kept_path, read_arrays, write_arrays

UNKNOWN = -1
SAVE_EVERY = 256
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class CostsCache:
    """The known costs of one shard's samples: columns are resources, then bytes; -1 is unknown."""

    shard: Path
    fingerprint: str
    count: int
    cache: Path | None = None
    resources: tuple[str, ...] = ()
    rows: Integers = field(init=False)
    unsaved: int = 0

    def __post_init__(self) -> None:
        self.rows = np.full((self.count, 0), UNKNOWN, np.int64)
        self._take_in()

    def get(self, index: int) -> tuple[dict[str, int], int | None] | None:
        """Return (cost, nbytes) of a sample, or None if it has not been probed."""
        if not self.resources or self.rows[index, 0] == UNKNOWN:
            return None
        *cost, nbytes = self.rows[index].tolist()
        return dict(zip(self.resources, cost, strict=True)), None if nbytes == UNKNOWN else nbytes

    def put(self, index: int, cost: dict[str, int], nbytes: int | None) -> None:
        """Remember a sample's cost; saves now and then, and when all are known."""
        resources = tuple(cost)
        if not resources or (self.resources and resources != self.resources):
            return  # costs that differ in kind from sample to sample are not kept
        if not self.resources:
            self._resize(resources)
        self.rows[index] = (*cost.values(), UNKNOWN if nbytes is None else nbytes)
        self.unsaved += 1
        if self.unsaved >= SAVE_EVERY or (self.rows[:, 0] != UNKNOWN).all():
            self.save()

    def save(self) -> bool:
        """Write what is known, joined with what others wrote; return whether that was possible."""
        if not self.unsaved:
            return True
        self._take_in()
        self.unsaved = 0
        names = np.frombuffer("\0".join(self.resources).encode(), np.uint8)
        arrays: Arrays = {"resources": names, "rows": self.rows}
        return write_arrays(self._path(), self._about(), arrays)

    def _take_in(self) -> None:
        kept = read_arrays(self._path(), self._about())
        if kept is None or {"resources", "rows"} - kept.keys():
            return
        resources = tuple(kept["resources"].tobytes().decode("utf-8", "replace").split("\0"))
        rows = kept["rows"]
        if rows.shape != (self.count, len(resources) + 1) or rows.dtype != np.int64:
            return
        if not self.resources:
            self._resize(resources)
        if self.resources == resources:
            missing = self.rows[:, 0] == UNKNOWN
            self.rows[missing] = rows[missing]

    def _resize(self, resources: tuple[str, ...]) -> None:
        self.resources = resources
        self.rows = np.full((self.count, len(resources) + 1), UNKNOWN, np.int64)

    def _path(self) -> Path:
        return kept_path(self.shard, f"costs-{self.fingerprint}", self.cache)

    def _about(self) -> tuple[int, int]:
        return identity(self.shard)
