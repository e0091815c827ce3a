"""Keeps probed costs beside the data (or in the cache folder): a second run need not probe.

There is one file of arrays per file of the data and transform; its name has a fingerprint of both.
It is written as a whole, when an eighth of what is known is new and when the process ends. Several
workers may write one file: each adds what it knows to what is there, and who misses a sample looks
first whether others have written more. What a killed process had not written is measured again.
"""

from collections.abc import Mapping
from multiprocessing.util import Finalize
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from .cache_files import Arrays, Stamp, kept_path, lock_folder_of, read_or_remove, write_arrays

Row = tuple[int, ...]  # costs, and bytes or -1
TYPES = {"names": np.dtype(np.uint8), **dict.fromkeys(("indexes", "rows"), np.dtype(np.int64))}


class CostsCache:
    """The known costs of one file's `count` samples. A file that cannot be written is no error.

    `stamp` identifies the file's state, `fingerprint` all else that decides the costs.
    """

    def __init__(
        self, file: Path, stamp: Stamp, fingerprint: str, count: int, cache: Path | None = None
    ) -> None:
        self.path = kept_path(file, f"{fingerprint}.costs", cache)
        self.about = (*stamp, count)
        self.resources: tuple[str, ...] = ()
        # Sorted numbers of samples (n,), and their rows (n, costs and bytes).
        self._known = np.empty(0, np.int64), np.empty((0, 0), np.int64)
        self._new: dict[int, Row] = {}  # not in the file yet
        self._at_exit: Finalize | None = None
        self._state: object = None  # of the file when it was read
        self._read()

    def get(self, index: int) -> tuple[dict[str, int], int | None] | None:
        """Return (cost, nbytes) of a sample, or None if it has not been probed."""
        row = self._row(index)
        if row is None and self._read():
            row = self._row(index)
        if row is None:
            return None
        *cost, nbytes = row
        return dict(zip(self.resources, cost, strict=True)), None if nbytes < 0 else nbytes

    def put(
        self, index: int, cost: Mapping[str, int], nbytes: int | None, write_from: int = 1
    ) -> None:
        """Remember a sample's cost, here and soon in the file.

        write_from: of so many new ones on, and of an eighth of what is known.
        """
        self.resources = self.resources or tuple(cost)
        if not self.resources or tuple(cost) != self.resources:
            return  # costs that differ in kind from sample to sample are not kept
        if not self._new:
            self._at_exit = Finalize(None, self.keep, exitpriority=0)
        self._new[index] = (*cost.values(), -1 if nbytes is None else nbytes)
        if len(self._new) >= max(write_from, len(self._known[0]) // 8):
            self.keep()

    def keep(self) -> None:
        """Write the rows that are not in the file yet."""
        new = dict(self._new)
        if not new:
            return
        with lock_folder_of(self.path):
            self._read()
            self._add(list(new), list(new.values()))
            names = np.frombuffer("\0".join(self.resources).encode(), np.uint8)
            arrays: Arrays = {"indexes": self._known[0], "rows": self._known[1]}
            if write_arrays(self.path, self.about, {"names": names, **arrays}):
                self._state = self._state_now()
        for index in new:
            self._new.pop(index, None)
        if self._at_exit is not None and not self._new:
            self._at_exit.cancel()

    def _row(self, index: int) -> Row | None:
        row = self._new.get(index)
        if row is None:
            indexes, rows = self._known
            at = int(np.searchsorted(indexes, index))
            row = rows[at].tolist() if at < len(indexes) and indexes[at] == index else None
        return row

    def _add(self, indexes: ArrayLike, rows: ArrayLike) -> None:
        """Take rows of samples, in place of what was known of them."""
        known, width = self._known, len(self.resources) + 1
        merged, first = np.unique(
            np.concatenate([np.asarray(indexes, np.int64), known[0]]), return_index=True
        )
        both = [np.asarray(rows, np.int64).reshape(-1, width), known[1].reshape(-1, width)]
        self._known = merged, np.concatenate(both)[first]

    def _read(self) -> bool:
        """Take what others have written to the file; return whether they have."""
        state = self._state_now()
        if state in (None, self._state):
            return False
        self._state = state
        arrays = read_or_remove(self.path, self.about, _checked, "costs of this file")
        if arrays is None or self.resources not in ((), _read_names(arrays)):
            return False
        self.resources = _read_names(arrays)
        self._add(arrays["indexes"], arrays["rows"])
        return True

    def _state_now(self) -> object:
        """Return what tells one state of the kept file from the next; None where there is none."""
        try:
            state = self.path.lstat()
        except OSError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns


def _checked(arrays: Arrays) -> Arrays | None:
    """Return the arrays of a kept file; None for those of something else."""
    return arrays if {name: array.dtype for name, array in arrays.items()} == TYPES else None


def _read_names(arrays: Arrays) -> tuple[str, ...]:
    return tuple(arrays["names"].tobytes().decode(errors="replace").split("\0"))
