"""grain's MapDataset over a list of arrays in memory, batched in worker processes.

grain's workers belong to an iterator and end with it, so that one endless iterator serves all
passes. A pass begins with batches that are not counted: those that workers had made beforehand.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from .cell import Cell
from .premade import PremadeTensors

# Batches that each worker makes ahead, as torch's prefetch_factor. Its own default is 1.
AHEAD = 2
# More epochs than anybody measures: a length without bound is more than len() can say.
_EPOCHS = 10**9


class _Endless:
    def __init__(self, batches: Any, ahead: int, count: int) -> None:
        self._batches, self._ahead, self._count = batches, ahead, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self._ahead):
            next(self._batches)
        return map(torch.from_numpy, islice(self._batches, self._count))

    def close(self) -> None:
        self._batches.close()


def open_loader(cell: Cell) -> _Endless:
    """Return batches of grain's own collation, which writes to the memory that it shares."""
    import grain

    arrays = [each.numpy() for each in PremadeTensors(cell).made]
    workers = grain.multiprocessing.MultiprocessingOptions(cell.workers, AHEAD)
    reading = grain.ReadOptions(num_threads=0)  # as its docs say of data in memory
    batches = grain.MapDataset.source(arrays).repeat(_EPOCHS).batch(cell.batch_size)
    endless = iter(batches.to_iter_dataset(reading).mp_prefetch(workers))
    return _Endless(endless, cell.workers * (AHEAD + 1), cell.batches)
