"""A process' connection to its host's balancer, which one of the host's processes has started.

The workers are the process' own: they collate with the function that the loader has, and send any
object. They are started anew for each run, as torch's are, or once if they are persistent.
"""

import atexit
import contextlib
import itertools
import os
import socket
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.utils.data import _utils

from ...balancer.job.messages import JoinPool, LeavePool
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.run.tasks import RunStart
from ...balancer.server.embedded import find_directory
from ...balancer.transport.naming import DEFAULT_JOB, peer_name
from ...workers.arena.worker import replace_stacking
from ...workers.codec.local_frames import encode_local
from ...workers.daemon.job_worker import WorkerSetup, run_remote_worker
from ...workers.planned.reader import Collate
from ...workers.processes.pool import Pool, PoolEndedError, WorkerSlot
from ...workers.processes.start_method import quiet_forks
from ...workers.serving.frame_store import FrameStore
from ...workers.serving.server import FramesWay, PullServer
from ...workers.sources.failures import locate_error
from ...workers.sources.interface import Source
from ...workers.sources.randomness import own_generators
from ..balanced.settings import WorkerStart
from ..step.errors import LoaderError
from ..step.ranks import Place
from .balancer_process import EmbeddedBalancer
from .batch_reader import BatchReader
from .connection import TrainerConnection
from .rendezvous import Rendezvous

# The process that runs the balancer waits at most this long at its end: the others take their last
# batches from it, and may be slow.
END_WAIT_S = 30.0
# Total number of restarts of worker processes that died, in one run (or of persistent workers).
MAX_RESTARTS = 100
# torch's own, untyped
_torch_worker: Any = _utils.worker
_pool_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The arguments of a worker's process.

    worker_init: the loader's worker_init_fn. threads: that decode, in each worker. pool_name: on
    this host. collate: makes batches. run: that they are started for, -1 for any (see JoinPool).
    """

    job: JobSpec
    source: Source
    endpoint: str
    worker_init: Callable[[int], None] | None = None
    threads: int = 1
    pool_name: str = ""
    collate: Collate | None = None
    run: int = -1


class LocalProcesses:
    """The processes of one connection: its workers, and the balancer unless others have it."""

    def __init__(self, balancer: EmbeddedBalancer | None) -> None:
        self.balancer = balancer
        self.pool: Pool | None = None
        self.names: tuple[str, ...] = ()

    def find_descriptors(self) -> set[int]:
        """Return what to poll: if one is readable, `explain_failure` may have a reason."""
        return {process.fileno() for process in self._running()}

    def explain_failure(self) -> str:
        """Return why the run cannot go on, empty while it can."""
        return next(filter(None, (process.failure() for process in self._running())), "")

    def _running(self) -> list[EmbeddedBalancer | Pool]:
        return [process for process in (self.balancer, self.pool) if process is not None]

    def end_workers(self) -> tuple[str, ...]:
        """End the workers and wait until they are gone; return their names."""
        pool, self.pool = self.pool, None
        if pool is None:
            return ()
        pool.close()
        return self.names


class HostConnection(TrainerConnection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self, worker_start: WorkerStart, config: WorkerConfig, balancer: EmbeddedBalancer | None,
        place: Place, reader: BatchReader, prefetch: int, name: str, peers: Rendezvous,
    ) -> None:  # fmt: skip
        """Make a connection; `balancer` is the one that all use, where this process has it.

        peers: the processes that share the balancer, and are told why this one cannot go on.
        """
        self._worker_start, self._config, self._peers = worker_start, config, peers
        self._processes = processes = LocalProcesses(balancer)
        super().__init__(
            config.endpoint, place, reader, prefetch, name, DEFAULT_JOB,
            patience_s=0.0 if balancer is None else END_WAIT_S, watch=processes.explain_failure,
        )  # fmt: skip
        if balancer is not None:
            _shared_connections.add(self)

    def begin(self, start: RunStart) -> None:
        """Start the workers, while this connection has no sockets, and the next run."""
        with self._lock():
            processes = self._processes
            if processes.pool is None or not self._worker_start.persistent:
                self._end_workers()
                ended = processes.names
                self._sockets.link()  # the job is to be there when its workers come
                self._sockets.suspend()
                run = -1 if self._worker_start.persistent else self.session.run + 1
                config = replace(self._config, run=run)
                try:
                    with self._peers.telling():
                        processes.pool, processes.names = _start_workers(self._worker_start, config)
                except RuntimeError as error:  # as if it had come after they were ready
                    raise LoaderError(str(error)) from error
                self._sockets.watch(processes.find_descriptors())
                if ended:  # again: of the connection that was suspended not all may have been read
                    self._sockets.link().send(LeavePool(ended))
            super().begin(start)

    def finish(self) -> None:
        """End the workers, unless they are persistent; nothing in a forked copy of the trainer."""
        if os.getpid() == self._sockets.owner and not self._worker_start.persistent:
            with self._sockets.lock:
                self._end_workers()
                self._puller.close()

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        if self._processes.balancer is None and self._sockets.is_open:
            self.finish()
        super().close()
        self._processes.end_workers()
        if self._processes.balancer is not None:
            self._processes.balancer.close()
        _shared_connections.discard(self)

    def _end_workers(self) -> None:
        """End the workers, and tell the balancer which have ended."""
        names = self._processes.end_workers()
        self._sockets.watch(self._processes.find_descriptors())
        if names:
            self._sockets.link().send(LeavePool(names))

    def _check_silence(self) -> None:
        self._check_processes()
        if reason := self._peers.explain_absence():
            self._sockets.give_up()
            self._fail(reason)
        super()._check_silence()

    def _fail(self, reason: str) -> NoReturn:
        if reason == self.session.failure and not self.session.comes_again:
            # One that has not joined the run yet may find no balancer to tell it. Its store may be
            # gone as well, which is no reason to hide this one.
            with contextlib.suppress(RuntimeError):
                self._peers.give_up(reason, "go on")
        super()._fail(reason)


# Connections whose balancer serves other ranks too: at exit they must be closed before the pools.
_shared_connections: "weakref.WeakSet[HostConnection]" = weakref.WeakSet()


def _close_shared() -> None:
    for connection in list(_shared_connections):
        connection.close()


atexit.register(_close_shared)


def _start_workers(worker_start: WorkerStart, config: WorkerConfig) -> tuple[Pool, tuple[str, ...]]:
    """Start the workers of a run; return their pool, and their names. See `Pool` for errors."""
    config = replace(config, pool_name=f"{os.getpid()}-{next(_pool_numbers)}")
    with quiet_forks():
        pool = Pool(_run_worker, config, worker_start.workers, worker_start.context, MAX_RESTARTS)
    return pool, tuple(_worker_name(config.pool_name, slot) for slot in range(worker_start.workers))


def _worker_name(pool_name: str, slot: int) -> str:
    """Return the name of the worker that a pool on this host has in a slot."""
    return f"{socket.gethostname()}/{pool_name}/{slot}"


def _run_worker(config: WorkerConfig, slot: WorkerSlot) -> None:
    """Run a worker of a pool, in its process, until the balancer ends it."""
    seed = config.job.plan.seed
    torch.set_num_threads(1)  # as torch's workers do: the threads of a forked trainer are not here
    _torch_worker._worker_info = _torch_worker.WorkerInfo(
        id=slot.index, num_workers=slot.workers, seed=seed, dataset=config.source
    )
    if config.worker_init is not None:
        try:
            config.worker_init(slot.index)
        except Exception as error:  # would be raised in another worker, too
            raise PoolEndedError(f"worker_init_fn raised {locate_error(error)}") from error
    with own_generators():
        reason = _serve_parts(config, slot)
    if reason:
        # Another process of the same data would be turned away, too.
        raise PoolEndedError(reason)


def _serve_parts(config: WorkerConfig, slot: WorkerSlot) -> str:
    """Do parts of microbatches; return why the balancer has ended the worker, empty if well."""
    replace_stacking()
    frames, name = _open_way(config), _worker_name(config.pool_name, slot.index)
    # A worker that is started in the place of another comes later, on the same machine's clock.
    hello = JoinPool(
        name, time.monotonic_ns(), frames.text, frames.address, frames.key, config.job.buffer_bytes,
        run=config.run,
    )  # fmt: skip
    setup = WorkerSetup(
        peer_name(DEFAULT_JOB, name), hello, lambda _: config.source, frames.server,
        config.threads, config.collate, encode_local,
    )  # fmt: skip
    try:
        return run_remote_worker(config.endpoint, setup)
    finally:
        frames.close()


def _open_way(config: WorkerConfig) -> FramesWay:
    """Return how this worker's frames travel: trainers of this host pull over a unix socket."""
    address = f"ipc://{find_directory(config.endpoint)}/worker.{os.getpid()}"
    try:
        return FramesWay(PullServer(address, None, FrameStore()), address)
    except OSError as error:
        return FramesWay(None, why=f"no socket: {error}")
