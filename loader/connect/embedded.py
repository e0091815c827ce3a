"""Starts a balancer and workers on the trainer's machine; they end with the loader."""

import math
import sys
from dataclasses import dataclass

from ...balancer.coordinator.machine import Coordinator
from ...balancer.planning.warmup import compile_for
from ...balancer.protocol.job_spec import JobSpec
from ...balancer.server.loop import serve
from ...balancer.server.malloc import keep_freed_memory
from ...workers.daemon.loop import local_identity, run_worker
from ...workers.daemon.source_handler import SourceHandler
from ...workers.processes.pool import Pool, start_pool
from ...workers.processes.pool_job import PoolJob, Ready, WorkerSlot
from ...workers.sources.interface import Source

# Total number of restarts of worker processes that died.
RESTARTS = 100


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The arguments of a pool's processes; `endpoint` is set if another pool has the balancer."""

    job: JobSpec
    source: Source | None
    endpoint: str = ""


def start_embedded(payload: PoolConfig, workers: int, method: str = "forkserver") -> Pool:
    """Start workers, and a balancer unless the payload names one; see `start_pool` for errors."""
    return start_pool(
        PoolJob(
            work=_work,
            payload=payload,
            workers=workers,
            serve=None if payload.endpoint else _serve,
            restart=RESTARTS,
        ),
        method,
    )


def failure(pool: Pool) -> str:
    """Return why the pool cannot go on, empty while it can."""
    for report in pool.poll_reports():
        if report.event == "failed" and report.worker is None:
            return report.message
        if report.event == "exited" and report.worker is not None and not report.restarted:
            how = f"signal {report.signal}" if report.signal else f"status {report.code}"
            return f"worker {report.worker} ended with {how} and is not started again"
    return ""


def prepare_planning(job: JobSpec) -> None:
    """Compile what the job's planning needs, before anybody waits for it."""
    if job.plan is not None:
        compile_for(job.plan.grouping, _log)


def _log(text: str) -> None:
    sys.stderr.write(f"counterpoise: {text}\n")


def _serve(payload: PoolConfig, directory: str, ready: Ready) -> None:
    keep_freed_memory()
    prepare_planning(payload.job)
    coordinator = Coordinator(payload.job, heartbeat_timeout_s=math.inf)
    serve(coordinator, f"ipc://{directory}/balancer", ready)


def _work(payload: PoolConfig, slot: WorkerSlot) -> None:
    plan = payload.job.plan
    handler = SourceHandler(
        payload.source, payload.job.resources, plan.seed if plan else 0, local=True
    )
    endpoint = payload.endpoint or slot.endpoint
    reason = run_worker(endpoint, local_identity(slot.index, slot.incarnation), handler)
    if reason:
        raise RuntimeError(reason)
