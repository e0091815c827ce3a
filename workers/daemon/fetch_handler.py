"""Fetches whole batches for a loop without balancing, as torch's workers do.

The trainer's sampler decides what is in a batch; the worker loads it, collates it and sends it, or
sends the error instead. Seeds, `get_worker_info`, `worker_init_fn` and the fetchers are torch's
own (torch/utils/data/_utils/worker.py, 2.13), so that a dataset cannot tell the difference.
"""

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, _DatasetKind, _utils, default_collate
from torch.utils.data.graph_settings import apply_random_seed

from ...balancer.protocol.error_policy import OnError
from ...balancer.protocol.messages import Probed, SampleRef
from ..codec.frames import encode, payload_of
from ..processes.pool_job import WorkerSlot
from .loop import Decoded
from .skipping_fetcher import tolerant

# torch's own, untyped
_worker: Any = _utils.worker
_create_fetcher: Any = _DatasetKind.create_fetcher
_wrap_exception: Any = ExceptionWrapper
# Sent when a worker's share of an IterableDataset is over; it has the worker's number.
Exhausted = _utils.worker._IterableDatasetStopIteration


@dataclass(frozen=True, slots=True)
class Fetching:
    """The arguments that torch's DataLoader gives to each of its workers, and the error policy."""

    dataset_kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Callable[[list[Any]], Any]
    drop_last: bool
    base_seed: int
    init_fn: Callable[[int], None] | None
    on_error: OnError = "raise"


def pack_task(index: Any, shared_seed: int | None) -> bytes:
    """Return a task to fetch one batch: its indices, and the seed of the epoch's datapipe."""
    return pickle.dumps((index, shared_seed), protocol=5)


class FetchHandler:
    """Fetches one batch per task; see workers/daemon/loop.py."""

    def __init__(self, fetching: Fetching, slot: WorkerSlot) -> None:
        self._fetching = fetching
        self._dataset = fetching.dataset
        self._slot = slot
        self._fetcher: Any = None
        self._epoch = -1
        self._broken: Any = None
        self._exhausted = False

    def open(self, job: str) -> tuple[int, str]:  # noqa: ARG002
        """Seed the generators and run the user's worker_init_fn."""
        number, seed = self._slot.index, self._fetching.base_seed
        torch.set_num_threads(1)
        random.seed(seed + number)
        torch.manual_seed(seed + number)
        np.random.seed(_worker._generate_state(seed, number))
        _worker._worker_info = _worker.WorkerInfo(
            id=number, num_workers=self._slot.workers, seed=seed + number, dataset=self._dataset
        )
        try:
            if self._fetching.init_fn is not None:
                self._fetching.init_fn(number)
        except Exception:
            self._broken = self._error()
        return 0, "batches"

    def key(self, ref: SampleRef) -> str:
        """Return a batch's name: its ordinal."""
        return str(ref.ordinal)

    def probe(self, ref: SampleRef, epoch: int) -> Probed | Decoded:  # noqa: ARG002
        """Refuse: batches that are not planned are not measured."""
        raise ValueError("a loop without balancing has no costs to probe")

    def decode(self, ref: SampleRef, epoch: int) -> Decoded:
        """Return a batch, or the error that took its place, or that there are no more."""
        result = self._fetch(ref, epoch)
        try:
            header, buffers = encode(result)
        except Exception:
            header, buffers = encode(self._error())
        return Decoded(self.key(ref), (), msgpack.packb(header), payload_of(buffers))

    def _fetch(self, ref: SampleRef, epoch: int) -> Any:
        try:
            index, shared_seed = pickle.loads(ref.pickled)
            if epoch != self._epoch:
                self._start_epoch(epoch, shared_seed)
            if self._broken is not None:
                return self._broken
            return Exhausted(self._slot.index) if self._exhausted else self._fetcher.fetch(index)
        except StopIteration:
            if self._fetching.dataset_kind != _DatasetKind.Iterable:
                return self._error()
            self._exhausted = True
            return Exhausted(self._slot.index)
        except Exception:
            return self._error()

    def _start_epoch(self, epoch: int, shared_seed: int | None) -> None:
        self._epoch, self._exhausted = epoch, False
        if isinstance(self._dataset, IterDataPipe) and shared_seed is not None:
            generator = torch.Generator().manual_seed(shared_seed)
            self._dataset = apply_random_seed(self._dataset, generator)
        if self._broken is None:
            self._fetcher = _create_fetcher(
                self._fetching.dataset_kind,
                self._dataset,
                self._fetching.auto_collation,
                _collate_fn(self._fetching.collate_fn),
                self._fetching.drop_last,
            )
            if self._fetching.on_error != "raise":
                self._fetcher = tolerant(self._fetcher, self._fetching.on_error)

    def _error(self) -> Any:
        """Return the exception being handled, in the form that torch raises in the trainer."""
        return _wrap_exception(where=f"in DataLoader worker process {self._slot.index}")


def _collate_fn(chosen: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return _collate_in_own_memory if chosen is default_collate else chosen


def _collate_in_own_memory(samples: list[Any]) -> Any:
    """Collate as in the trainer: in a worker torch makes new shared memory for every batch.

    Its own transport needs that and ours does not; it costs several times the collating.
    """
    info, _worker._worker_info = _worker._worker_info, None
    try:
        return default_collate(samples)
    finally:
        _worker._worker_info = info
