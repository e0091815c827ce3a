"""Starts a balancer and workers on the trainer's machine; they end with the loader.

The balancer is a clean process that lives as long as the connection. The workers are a pool of
their own, started as torch would start them: anew for every run (so that they have the data set as
it is then), or once if they are persistent.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import _utils

from ...balancer.protocol.job_spec import JobSpec
from ...balancer.server.embedded import directory_of
from ...workers.daemon.identity import local_identity, local_name
from ...workers.daemon.loop import run_worker
from ...workers.daemon.payloads import Payloads, served_by
from ...workers.daemon.source_handler import SourceHandler
from ...workers.processes.pool import Pool, begin_pool
from ...workers.processes.pool_job import (
    PoolEndedError,
    PoolJob,
    Report,
    WorkerSlot,
    locate_error,
)
from ...workers.processes.quiet_forks import quiet_forks
from ...workers.processes.start_method import start_method
from ...workers.serving.server import PullServer
from ...workers.sources.fingerprint import software
from ...workers.sources.interface import Source
from ...workers.sources.randomness import own_generators
from ..local.workers import WorkerStart
from .balancer_process import EmbeddedBalancer

# Total number of restarts of worker processes that died, in one run (or of persistent workers).
RESTARTS = 100
# torch's own, untyped
_torch_worker: Any = _utils.worker


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The arguments of a worker's process; `begin` is the loader's worker_init_fn.

    threads: those that decode, in each worker.
    """

    job: JobSpec
    source: Source
    endpoint: str
    begin: Callable[[int], None] | None = None
    threads: int = 1


def start_pool_of(start: WorkerStart, config: WorkerConfig) -> Pool:
    """Start workers as torch would now, and return at once; see `begin_pool` for errors."""
    # Here, and kept: each worker would look for the versions anew.
    software()
    job = PoolJob(work=_work, payload=config, workers=start.workers, restart=RESTARTS)
    with quiet_forks():
        return begin_pool(job, start_method(start.context))


class LocalProcesses:
    """The processes of one connection: its workers, and the balancer unless others have it."""

    def __init__(
        self, start: WorkerStart, config: WorkerConfig, balancer: EmbeddedBalancer | None
    ) -> None:
        self.balancer = balancer
        self.pool: Pool | None = None
        self._reader = PoolReader()
        self._start = start
        self._config = config

    def descriptors(self) -> set[int]:
        """Return what to poll: if one is readable, `failure` may have a reason."""
        watched: set[int] = set()
        for each in (self.balancer, self.pool):
            if each is not None:
                watched.add(each.fileno())
        return watched

    def failure(self) -> str:
        """Return why the run cannot go on, empty while it can."""
        lost = "" if self.balancer is None else self.balancer.failure()
        return lost or ("" if self.pool is None else self._reader.failure(self.pool.poll_reports()))

    def are_kept(self) -> bool:
        """Return whether there are workers that serve the next run, too."""
        return self.pool is not None and self._start.persistent

    def start_workers(self) -> None:
        """Start the workers of a run, which go on meanwhile, as a new balancer does."""
        self.pool, self._reader = start_pool_of(self._start, self._config), PoolReader()

    def wait_ready(self) -> None:
        """Wait for what was started; RuntimeError with its own message if it cannot be."""
        if self.balancer is not None:
            self.balancer.wait_ready()
        if self.pool is not None:
            self.pool.wait_ready()

    def finish(self) -> tuple[str, ...]:
        """End the workers of a run that is over, unless they are persistent; return their names."""
        return () if self._start.persistent else self.end_workers()

    def end_workers(self) -> tuple[str, ...]:
        """End the workers and wait until they are gone; return their names."""
        pool, self.pool = self.pool, None
        if pool is None:
            return ()
        supervisor = pool.supervisor_pid
        pool.close()
        return tuple(local_name(supervisor, slot) for slot in range(self._start.workers))

    def close(self) -> None:
        """End all processes and wait until they are gone."""
        self.end_workers()
        if self.balancer is not None:
            self.balancer.close()


class PoolReader:
    """Reads the reports of a pool of workers, and says why the run cannot go on."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}

    def failure(self, reports: Iterable[Report]) -> str:
        """Return why the run cannot go on after these reports too, empty while it can.

        A worker says why it fails before it ends; the two may come in one call or in two.
        """
        for report in reports:
            if report.event == "failed" and report.worker is None:
                return report.message
            if report.worker is None:
                continue
            if report.event == "failed":
                self._reasons[report.worker] = f": {report.message}"
            if report.event == "exited" and not report.restarted:
                how = f"signal {report.signal}" if report.signal else f"status {report.code}"
                why = self._reasons.get(report.worker, "")
                return f"worker {report.worker} ended with {how} and is not started again{why}"
        return ""


def _work(config: WorkerConfig, slot: WorkerSlot) -> None:
    seed = config.job.plan.seed
    torch.set_num_threads(1)  # as torch's workers do: the threads of a forked trainer are not here
    _torch_worker._worker_info = _torch_worker.WorkerInfo(
        id=slot.index, num_workers=slot.workers, seed=seed, dataset=config.source
    )
    if config.begin is not None:
        _begin(config.begin, slot.index)
    payloads = _payloads(config)
    resources = config.job.resources
    handler = SourceHandler(config.source, resources, seed, local=True, threads=config.threads)
    identity = local_identity(slot.index, slot.incarnation)
    try:
        with own_generators():
            reason = run_worker(config.endpoint, identity, handler, payloads=payloads)
    finally:
        payloads.close()
    if reason:
        # Another process of the same data would be turned away, too.
        raise PoolEndedError(reason)


def _payloads(config: WorkerConfig) -> Payloads:
    """Return this worker's payloads, which ranks of this machine pull over a unix socket."""
    address = f"ipc://{directory_of(config.endpoint)}/worker.{os.getpid()}"
    try:
        return served_by(PullServer(address, config.job.buffer_bytes, keys=None), address)
    except OSError as error:
        return Payloads(None, f"no socket: {error}")


def _begin(begin: Callable[[int], None], number: int) -> None:
    """Run the user's worker_init_fn; what it raises would be raised in another worker, too."""
    try:
        begin(number)
    except Exception as error:
        raise PoolEndedError(f"worker_init_fn raised {locate_error(error)}") from error
