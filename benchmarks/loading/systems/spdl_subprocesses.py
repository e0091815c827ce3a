"""SPDL's iterate_in_subprocess, one for each worker, whose batches travel in its shared memory.

They take turns. Batches are views of a pool's memory, as SPDL's docs recommend for large ones. Its
pipeline of threads in one subprocess, with the same pool, was half as fast or less on tensors that
exist (150 KB by 32: 15,000 samples/s, and 27,000 in this way).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from .cell import Cell
from .premade import PremadeTensors

# Batches that each worker makes ahead: SPDL's default.
AHEAD = 3


class _Batches:
    """The batches of one pass, which a subprocess goes through."""

    def __init__(self, dataset: PremadeTensors, order: Sequence[Sequence[int]]) -> None:
        self._dataset, self._order = dataset, order

    def __iter__(self) -> Iterator[torch.Tensor]:
        for indices in self._order:
            yield torch.utils.data.default_collate([self._dataset[each] for each in indices])


class _InTurns:
    def __init__(self, workers: list[Any]) -> None:
        self._workers = workers

    def __iter__(self) -> Iterator[torch.Tensor]:
        # all begin here, as other loaders' workers do
        return _in_turns([iter(each) for each in self._workers])

    def close(self) -> None:
        # their finalizers end the subprocesses and unlink the pools
        self._workers.clear()


def _in_turns(parts: list[Iterator[torch.Tensor]]) -> Iterator[torch.Tensor]:
    while parts:
        for part in list(parts):
            batch = next(part, None)
            if batch is None:
                parts.remove(part)
            else:
                yield batch
            del batch  # the pool's memory is free when nobody holds it


def open_loader(cell: Cell) -> _InTurns:
    """Return subprocesses that collate premade tensors."""
    _unregister_once()
    dataset, size = PremadeTensors(cell), cell.batch_size
    order = list(torch.utils.data.BatchSampler(range(len(dataset)), size, drop_last=True))
    return _InTurns(
        [_start(cell, dataset, order[at :: cell.workers]) for at in range(cell.workers)]
    )


def _start(cell: Cell, dataset: PremadeTensors, order: Sequence[Sequence[int]]) -> Any:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    # beside those that are ready: one that the trainer holds, and one that is being written
    pool = SharedMemorySegmentPool(cell.batch_size * cell.sample_bytes + 4096, AHEAD + 2)
    return iterate_in_subprocess(
        partial(_Batches, dataset, order), buffer_size=AHEAD, mp_context="fork", arena=pool
    )


def _unregister_once() -> None:
    """Keep SPDL from telling the resource tracker more than once that a segment is gone.

    Whoever attaches one says so, and all processes here share the tracker, which prints an error.
    """
    from spdl.pipeline._arena import _shm

    _shm.resource_tracker = SimpleNamespace(unregister=lambda name, rtype: None)  # noqa: ARG005
