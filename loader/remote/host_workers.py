"""The workers that a trainer starts for ranks which processes share: its pool, and what they do."""

import itertools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import _utils

from ...balancer.job.messages import JoinPool
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.server.embedded import directory_of
from ...balancer.transport.naming import DEFAULT_JOB, peer_name
from ...workers.arena.worker import replace_stacking
from ...workers.codec.local_frames import encode_local
from ...workers.daemon.job_worker import WorkerSetup, run_remote_worker
from ...workers.planned.reader import Collate
from ...workers.processes.pool import Pool, PoolEndedError, WorkerSlot
from ...workers.processes.start_method import quiet_forks
from ...workers.serving.frame_store import FrameStore
from ...workers.serving.server import FramesWay, PullServer, pulled_from, relayed
from ...workers.sources.failures import locate_error
from ...workers.sources.interface import Source
from ...workers.sources.randomness import own_generators
from ..balanced.settings import WorkerStart

# Total number of restarts of worker processes that died, in one run (or of persistent workers).
RESTARTS = 100
# torch's own, untyped
_torch_worker: Any = _utils.worker
_pools = itertools.count()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The arguments of a worker's process; `begin` is the loader's worker_init_fn.

    threads: those that decode, in each worker. pool: names the pool on this host. collate: with
    what workers make batches. run: for which they are started (see JoinPool).
    """

    job: JobSpec
    source: Source
    endpoint: str
    begin: Callable[[int], None] | None = None
    threads: int = 1
    pool: str = ""
    collate: Collate | None = None
    run: int = -1


def start_workers(
    start: WorkerStart, config: WorkerConfig, serve: Callable[[WorkerConfig, WorkerSlot], str]
) -> tuple[Pool, tuple[str, ...]]:
    """Start workers as torch would now; return them, and their names. See `Pool` for errors.

    serve: what each does; returns why it has ended.
    """
    config = replace(config, pool=f"{os.getpid()}-{next(_pools)}")
    with quiet_forks():
        pool = Pool(partial(_work, serve), config, start.workers, start.context, RESTARTS)
    return pool, tuple(local_name(config.pool, slot) for slot in range(start.workers))


def _work(
    serve: Callable[[WorkerConfig, WorkerSlot], str], config: WorkerConfig, slot: WorkerSlot
) -> None:
    seed = config.job.plan.seed
    torch.set_num_threads(1)  # as torch's workers do: the threads of a forked trainer are not here
    _torch_worker._worker_info = _torch_worker.WorkerInfo(
        id=slot.index, num_workers=slot.workers, seed=seed, dataset=config.source
    )
    if config.begin is not None:
        try:
            config.begin(slot.index)
        except Exception as error:  # would be raised in another worker, too
            raise PoolEndedError(f"worker_init_fn raised {locate_error(error)}") from error
    with own_generators():
        reason = serve(config, slot)
    if reason:
        # Another process of the same data would be turned away, too.
        raise PoolEndedError(reason)


def local_name(pool: str, slot: int) -> str:
    """Return the name of the worker that a pool on this host has in a slot."""
    return f"{socket.gethostname()}/{pool}/{slot}"


def open_way(config: WorkerConfig) -> FramesWay:
    """Return how this worker's frames travel: trainers of this host pull over a unix socket."""
    address = f"ipc://{directory_of(config.endpoint)}/worker.{os.getpid()}"
    try:
        return pulled_from(PullServer(address, None, FrameStore()), address)
    except OSError as error:
        return relayed(f"no socket: {error}")


def serve_parts(config: WorkerConfig, slot: WorkerSlot) -> str:
    """Be a worker of the process' pool; return why the balancer has ended it."""
    replace_stacking()
    way, name = open_way(config), local_name(config.pool, slot.index)
    # One that is started in the place of another comes later, on the same machine's clock.
    hello = JoinPool(
        name, time.monotonic_ns(), way.text, way.address, way.key, config.job.buffer_bytes,
        run=config.run,
    )  # fmt: skip
    setup = WorkerSetup(
        peer_name(DEFAULT_JOB, name), hello, lambda _: config.source, way.server,
        config.threads, config.collate, encode_local,
    )  # fmt: skip
    try:
        return run_remote_worker(config.endpoint, setup)
    finally:
        way.close()
