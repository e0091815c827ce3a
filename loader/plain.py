"""The loop without balancing: torch's iterator, with our workers and our wire behind it.

Every batch is what torch's own multiprocessing iterator would yield (torch 2.13,
`_MultiProcessingDataLoaderIter`): tasks go to the workers in turns, `prefetch_factor` per worker
are under way, results come in order, and a worker whose IterableDataset is exhausted is passed
over. What differs is below: tasks are offered to the balancer, pinned to a worker, and a batch
arrives as one message, whose memory its tensors use. With `in_order=False` any worker may take any
task, but batches still come in order, which torch allows.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import msgpack
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe, _DatasetKind, _utils
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _sharding_worker_init_fn,
    _SingleProcessDataLoaderIter,
)

from ..balancer.coordinator.delivery.sample import ANY_SLOT
from ..balancer.coordinator.machine import Coordinator
from ..balancer.protocol.job_spec import JobSpec, to_json
from ..balancer.protocol.messages import EpochPosition
from ..balancer.server.loop import serve
from ..workers.codec.frames import decode
from ..workers.daemon.fetch_handler import Exhausted, FetchHandler, Fetching, pack_task
from ..workers.daemon.loop import local_identity, run_worker
from ..workers.daemon.skipping_fetcher import Fetched, tolerant
from ..workers.processes.pool import Pool, start_pool
from ..workers.processes.pool_job import PoolJob, Ready, WorkerSlot
from .collate.payloads import payload_buffer
from .connect.remote import Connection, Party
from .step.errors import LoaderError
from .step.skipped import LeftOut

# A batch may take any time, and none is dropped and made again: datasets with state
# (generators, iterables) would give another one. prefetch_factor bounds what is held.
PLAIN_JOB = JobSpec(plan=None, lease_s=1e9, buffer_bytes=1 << 62)
# torch has no public hook between its sampler and its workers, so this module subclasses its
# iterators and uses their private names. tests/loader/plain compares with torch's own iterators,
# and fails with a torch that renames one.
_pin: Any = _utils.pin_memory.pin_memory


@dataclass(frozen=True, slots=True)
class _Watch:
    """Returns why the pool failed, in torch's words if it has them."""

    pool: Pool

    def __call__(self) -> str:
        reports = self.pool.poll_reports()
        ended = [r for r in reports if r.event == "exited" and r.worker is not None]
        if ended:
            pids = ", ".join(str(report.pid) for report in ended)
            return f"DataLoader worker (pid(s) {pids}) exited unexpectedly"
        lost = [r.message for r in reports if r.event == "failed" and r.worker is None]
        return lost[0] if lost else ""


class TolerantIterator(_SingleProcessDataLoaderIter):
    """One pass over a DataLoader with num_workers=0 that leaves bad samples out."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._left_out: LeftOut = loader._plain.left_out
        self._tolerant = tolerant(self._dataset_fetcher, self._left_out.on_error)
        self.empty_batches = 0

    def _next_data(self) -> Any:
        """Return the next batch that has a sample."""
        while True:
            fetched = self._tolerant.fetch(self._next_index())  # type: ignore[no-untyped-call]
            self._left_out.take(fetched)
            if not fetched.empty:
                break
            self.empty_batches += 1
        return _pin(fetched.batch, self._pin_memory_device) if self._pin_memory else fetched.batch


class PlainIterator(_BaseDataLoaderIter):
    """One pass over a DataLoader with num_workers > 0 (many, if the workers are persistent)."""

    _connection: Connection | None = None
    _pool: Pool | None = None

    def __init__(self, loader: Any) -> None:
        """Start the workers and give them their first tasks.

        Raises what the sampler raises, and what `start_pool` raises.
        """
        super().__init__(loader)
        if loader.prefetch_factor <= 0:
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        self._left_out: LeftOut | None = loader._plain.left_out
        self._in_order = loader.in_order
        self._most_tasks = loader.prefetch_factor * self._num_workers
        self._epoch = 0
        self._pipe_seed: int | None = self._shared_seed  # torch's first pass uses this one
        self._pool = _start(self._fetching(loader), self._num_workers, _method(loader))
        self._connection = Connection(
            self._pool.endpoint,
            Party((0,)),
            to_json(PLAIN_JOB),
            self._most_tasks,
            watch=_Watch(self._pool),
            watched_fd=self._pool.fileno(),
        )
        self._connection.wait_ready()
        self._reset(loader, first_iter=True)

    def _fetching(self, loader: Any) -> Fetching:
        init_fn = loader.worker_init_fn
        if isinstance(self._dataset, IterDataPipe | MapDataPipe):
            init_fn = functools.partial(
                _sharding_worker_init_fn, init_fn, self._world_size, self._rank
            )
        return Fetching(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
            int(self._base_seed),
            init_fn,
            "raise" if self._left_out is None else self._left_out.on_error,
        )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin another pass; drop what is left of the one before."""
        super()._reset(loader, first_iter)
        if not first_iter:
            self._pipe_seed = self._shared_seed
        self._sent = self._received = 0
        self.empty_batches = 0
        self._owners: dict[int, int] = {}
        self._active = [True] * self._num_workers
        self._turns = itertools.cycle(range(self._num_workers))
        self._need_connection().begin(self._epoch, EpochPosition(0, 0, 0, 0))
        self._epoch += 1
        for _ in range(self._most_tasks):
            self._offer_task()

    def _offer_task(self) -> None:
        """Offer the sampler's next batch to the worker whose turn it is, if there are both."""
        try:
            index = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        worker = self._next_worker()
        if worker is None:
            return
        anybody = not self._in_order and self._dataset_kind == _DatasetKind.Map
        task = pack_task(index, self._pipe_seed)
        self._need_connection().offer(self._sent, task, ANY_SLOT if anybody else worker)
        self._owners[self._sent] = worker
        self._sent += 1

    def _next_worker(self) -> int | None:
        turns = itertools.islice(self._turns, self._num_workers)
        return next((worker for worker in turns if self._active[worker]), None)

    def _next_data(self) -> Any:
        """Return the next batch; raises the dataset's error, or StopIteration at the end."""
        while self._received < self._sent:
            worker = self._owners.pop(self._received)
            data = self._receive()
            self._received += 1
            if isinstance(data, Exhausted):
                if self._active[worker]:
                    self._active[worker] = False
                    self._offer_task()
                continue
            self._offer_task()
            if isinstance(data, ExceptionWrapper):
                data.reraise()  # type: ignore[no-untyped-call]
            if self._left_out is not None:
                self._record(self._left_out, data)
                if data.empty:
                    self.empty_batches += 1
                    continue
                data = data.batch
            if self._pin_memory:
                data = _pin(data, self._pin_memory_device)
            return data
        if not self._persistent_workers:
            self._shutdown_workers()
        raise StopIteration

    def _record(self, left_out: LeftOut, fetched: Fetched) -> None:
        try:
            left_out.take(fetched)
        except LoaderError:
            self._shutdown_workers()
            raise

    def _receive(self) -> Any:
        try:
            arrival = self._need_connection().next(self._timeout or None)
        except TimeoutError:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        if arrival is None:
            raise RuntimeError("the balancer ended the run: please report this bug of counterpoise")
        header = msgpack.unpackb(arrival.batch.items[0].header)
        return decode(header, payload_buffer(arrival.payloads[0]), allow_object=True)

    def _need_connection(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the workers of this iterator have been shut down")
        return self._connection

    def _shutdown_workers(self) -> None:
        """End the processes; the iterator is over."""
        connection, self._connection = self._connection, None
        pool, self._pool = self._pool, None
        if connection is not None:
            connection.close()
        if pool is not None:
            pool.close()

    def __del__(self) -> None:
        self._shutdown_workers()


def _method(loader: Any) -> str:
    context = loader.multiprocessing_context
    return "fork" if context is not None and context.get_start_method() == "fork" else "forkserver"


def _start(fetching: Fetching, workers: int, method: str) -> Pool:
    return start_pool(PoolJob(_work, fetching, workers, _serve), method)


def _serve(_: Fetching, directory: str, ready: Ready) -> None:
    coordinator = Coordinator(PLAIN_JOB, heartbeat_timeout_s=math.inf)
    serve(coordinator, f"ipc://{directory}/balancer", ready)


def _work(fetching: Fetching, slot: WorkerSlot) -> None:
    identity = local_identity(slot.index, slot.incarnation)
    reason = run_worker(slot.endpoint, identity, FetchHandler(fetching, slot))
    if reason:
        raise RuntimeError(reason)
