"""The costs of a data set's samples, as far as they are known, by index in the source.

They are known beforehand (a table, a column, every sample alike), were kept beside the data by an
earlier run, or are measured by the workers, and are then known to later epochs of the loop.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..planning.kernels.arrays import Int64, Mask

# What an earlier run has kept of a sample: its costs by resource, None for nothing.
Kept = Callable[[int], Any]


class LoopCosts:
    """Costs (samples, resources) of `count` samples, and which of them are known.

    is_lasting: whether what is measured in one epoch holds in the next.
    """

    def __init__(self, count: int, resources: Sequence[str]) -> None:
        self.resources = tuple(resources)
        self.is_lasting = True
        # The kernel gives pages for what has been written to.
        self._costs = np.zeros((count, len(self.resources)), np.int64)
        # A source's own, in place of these until something is measured.
        self._columns: Sequence[np.ndarray] | None = None
        self._known = np.zeros(count, np.bool_)
        self._kept: Kept | None = None
        self._failed: set[int] = set()

    @classmethod
    def of_source(cls, source: Any, resources: Sequence[str]) -> "LoopCosts":
        """Return the costs that a source says of all its samples, or keeps of some."""
        costs = cls(len(source), resources)
        costs._columns = source.known_costs(costs.resources)
        if costs._columns is not None:
            costs._known[:] = True
        else:
            costs._kept = source.known
        return costs

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._known)

    @property
    def are_all_known(self) -> bool:
        """Return whether nothing has to be measured."""
        return bool(self._known.all())

    def unknown(self, indexes: Int64) -> Mask:
        """Return which of some samples (n,) are not known (n,); looks at what an earlier run kept.

        Raises what reading the kept costs raises.
        """
        missing = ~self._known[indexes]
        if self._kept is not None and missing.any():
            for index in indexes[missing].tolist():
                self._take_kept(index)
            missing = ~self._known[indexes]
        return missing

    def _take_kept(self, index: int) -> None:
        found = None if self._kept is None else self._kept(index)
        if found is not None and all(name in found.cost for name in self.resources):
            self._costs[index] = [found.cost[name] for name in self.resources]
            self._known[index] = True

    def rows(self, indexes: Int64) -> Int64:
        """Return the costs of samples (n, resources), 0 where they are not known."""
        if self._columns is None:
            rows: Int64 = self._costs[indexes]
            return rows
        return np.stack([column[indexes] for column in self._columns], 1).astype(np.int64)

    def store(self, indexes: Int64, rows: Int64) -> None:
        """Store what samples (n,) were measured to cost (n, resources)."""
        self._own_costs()[indexes] = rows
        self._known[indexes] = True

    def store_failed(self, index: int) -> None:
        """Store that a sample could not be measured: in this epoch it costs nothing."""
        self._own_costs()[index] = 0
        self._known[index] = True
        self._failed.add(index)

    def _own_costs(self) -> Int64:
        if self._columns is not None:
            for place, column in enumerate(self._columns):
                self._costs[:, place] = column
            self._columns = None
        return self._costs

    def forget(self, indexes: Iterable[int]) -> None:
        """Forget samples: they are measured again in the next epoch."""
        self._failed.update(indexes)

    def begin_epoch(self) -> None:
        """Keep what holds in another epoch, of the same data set."""
        if not self.is_lasting:
            self._known[:] = False
        self._known[list(self._failed)] = False
        self._failed.clear()
