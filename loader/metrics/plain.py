"""The iterator of a plain loop whose waits are counted."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler

from .stats import LoopStats


class TimedIterator(Iterator[Any]):
    """One of torch's iterators, with its time and samples counted."""

    def __init__(self, inner: Any, loader: Any, stats: LoopStats) -> None:
        self._inner, self._stats = inner, stats
        # Samples of a batch, and those that are left in the epoch where that is known.
        self._size, self._left, batches = loader.batch_size, None, loader.batch_sampler
        is_torchs = type(batches) is BatchSampler and hasattr(batches.sampler, "__len__")
        if is_torchs and hasattr(loader.dataset, "__len__"):
            self._size = batches.batch_size
            done = loader._plain.current.start.batches * self._size
            self._left = len(batches.sampler) - done
        self._has_batches = batches is not None

    def __next__(self) -> Any:
        self._stats.wait()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._stats.end()
            raise
        self._stats.take_plain(batch, self._samples(batch))
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        """Return what torch's iterator has."""
        return getattr(self._inner, name)

    def __getstate__(self) -> Any:
        """Refuse to be pickled, as torch's iterators do."""
        raise NotImplementedError("an iterator cannot be pickled: pickle the loader")

    def _samples(self, batch: Any) -> int:
        if (counted := self._inner.samples) is not None:
            return int(counted)
        if not self._has_batches:
            return 1
        if self._size is None:  # a sampler of the user's decides
            return count_rows(batch)
        if self._left is None:
            return int(self._size)
        count, self._left = min(self._size, max(0, self._left)), self._left - self._size
        return int(count)


def count_rows(batch: Any) -> int:
    """Return the rows of a batch's first tensor, 1 where it has none.

    >>> count_rows({"ids": torch.zeros(3, 5), "names": ["a", "b", "c"]})
    3
    """
    while isinstance(batch, Mapping | list | tuple) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch) if isinstance(batch, torch.Tensor) and batch.ndim else 1
