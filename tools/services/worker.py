"""`counterpoise worker`: a process that reads, decodes and streams samples for a balancer."""

import functools
import itertools
import logging
import os
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import torch

from ...balancer.job.messages import JoinPool
from ...balancer.transport.authentication import NOT_ALLOWED
from ...balancer.transport.finding import BALANCER_VARIABLE, checked_address
from ...balancer.transport.keys import PeerKeys, new_pair, peer_keys
from ...balancer.transport.naming import checked_job, peer_name
from ...loader.remote.memory_limit import memory_limit
from ...workers.arena.malloc import keep_freed_memory
from ...workers.daemon.job_worker import RemoteWorker, WorkerSetup, open_remote_worker
from ...workers.daemon.jobs import JobsWorker, ServedBalancer
from ...workers.planned.measuring import MAX_THREADS
from ...workers.serving.address import AUTO, NONE, NotServedError, serving_address, shown_address
from ...workers.serving.frame_store import FrameStore
from ...workers.serving.server import FramesWay, PullServer
from ...workers.sources.failures import describe_error
from ...workers.sources.interface import Source, source_name
from ...workers.sources.randomness import own_generators
from ...workers.sources.registry import import_named, open_source, registered
from ...workers.stores.allowed import restrict_urls
from ...workers.stores.obstore_store import forks_no_more
from ..console.commands import EXISTING_FOLDER, FILE, Command
from ..console.logs import log_options, set_up_logs
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")

# Kept for ranks by all workers of a host at most, where nothing else limits it.
MAX_KEPT_BYTES = 1 << 40
# With --serve tcp://HOST:PORT each job has a port, up to this many.
MOST_PORTS = 16
MIN_WEIGHT = 0.001


@click.command("worker", cls=Command, usual=("--root", "--allow", "--keys", "--cache", "--threads"))
@click.argument(
    "addresses", nargs=-1, metavar="ADDRESS[=WEIGHT]...", envvar=BALANCER_VARIABLE, required=True
)
@click.option(
    "--root", required=True, type=EXISTING_FOLDER,
    help="Read only below this folder.",
)  # fmt: skip
@click.option(
    "--allow", multiple=True, metavar="PACKAGE.MODULE:FUNCTION",
    help="Run this transform if a job asks for it (besides the registered ones); repeatable.",
)  # fmt: skip
@click.option(
    "--allow-url", multiple=True, metavar="PREFIX",
    help="Read URLs below this one if a job names them, as s3://bucket/train/; repeatable.",
)  # fmt: skip
@click.option(
    "--weight", "weights", multiple=True, metavar="JOB=WEIGHT",
    help="Give a job more or less of this worker's time than others (1); repeatable.",
)  # fmt: skip
@click.option(
    "--keys", multiple=True, type=EXISTING_FOLDER,
    metavar="FOLDER",
    help="This worker's keys, made by counterpoise keygen; one for all addresses, or one for each.",
)  # fmt: skip
@click.option(
    "--serve", default=AUTO, show_default=True, metavar="ADDRESS",
    help="Where ranks pull decoded samples: auto, the interface that reaches the balancer; "
    "tcp://HOST:PORT (further jobs at the ports after it); none, they travel through the balancer.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True, help="Without keys, serve where other hosts can reach it."
)
@click.option("--cache", type=FILE, help="Folder for indexes and costs.")
@click.option(
    "--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True,
    help="Threads that decode; more than one only where the transform says that it is thread_safe.",
)  # fmt: skip
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus there.")
@click.option(
    "--until-lost", type=float, metavar="SECONDS",
    help="End when no balancer has answered for this long (default: wait for ever).",
)  # fmt: skip
@click.option(
    "--drain", type=click.FloatRange(min=0.0), default=20.0, show_default=True, metavar="SECONDS",
    help="Asked to end (SIGTERM, Ctrl-C), finish what is begun and wait this long at most until "
    "ranks have taken it; asked again, end at once.",
)  # fmt: skip
@log_options
def command(
    addresses: tuple[str, ...], root: Path, allow: tuple[str, ...], allow_url: tuple[str, ...],
    weights: tuple[str, ...], keys: tuple[Path, ...], serve: str, insecure: bool,
    cache: Path | None, threads: int, metrics: str | None, until_lost: float | None, drain: float,
    log_level: str, log_format: str,
) -> None:  # fmt: skip
    """Work for the jobs of the balancers at ADDRESS until it is told to stop.

    ADDRESS is tcp://HOST:PORT, or file:///PATH of a file that `counterpoise balancer
    --address-file` writes; by default that of COUNTERPOISE_BALANCER. Jobs that have work at the
    same time share this worker's time by their weights: a job's own times that of its balancer.

    \b
    Example:
      counterpoise worker tcp://10.0.0.1:5555 --root /data --allow mylab.augment:crop
      counterpoise worker tcp://10.0.0.1:5555=2 tcp://10.0.0.2:5555=1 --root /data --insecure
    Exit status: 2 usage, 3 no balancer for --until-lost, 4 data that a job cannot use.
    """  # noqa: D301
    set_up_logs(log_level, log_format)
    for name in allow:
        registered((name,))
        import_named(name)  # here, not at the first sample
    restrict_urls(allow_url)
    if allow_url:
        forks_no_more()
    balancers = _balancers(addresses, weights, keys)
    torch.set_num_threads(1)  # a host has a worker, or a decode thread, for each core
    name, opened = f"{socket.gethostname()}/{os.getpid()}", itertools.count()
    build = functools.partial(_open_source, root=root, allow=allow, cache=cache)
    counts = None
    if metrics is not None:
        from .metrics import WorkCounts, serve_metrics  # here: others need nothing of it

        counts = WorkCounts()
        serve_metrics(metrics, counts)

    @contextmanager
    def open_job(balancer: ServedBalancer, endpoint: str, job: str) -> Iterator[RemoteWorker]:
        way = _open_way(endpoint, serve, balancer.keys, insecure)
        hello = JoinPool(name, next(opened), way.text, way.address, way.key, 0)
        count = None if counts is None else functools.partial(counts.count_part, job)
        setup = WorkerSetup(peer_name(job, name), hello, build, way.server, threads, count=count)
        with closing(way), open_remote_worker(endpoint, setup, balancer.keys) as worker:
            yield worker
        if counts is not None:
            counts.forget(job)

    keep_freed_memory()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # each job has some 40
    with own_generators(), stop_on_signal() as stop:
        shown = ", ".join(served.address for served in balancers)
        logger.info("working for %s, reading below %s", shown, root, extra={"worker": name})
        worker = JobsWorker(balancers, open_job, _memory_bytes())
        if reason := worker.work(stop, until_lost, drain):
            # a job may be the first to say that a key is allowed no more
            raise ValueError(reason) if NOT_ALLOWED in reason else RefusedWorkerError(reason)
    logger.info("ends: what was done has been sent", extra={"event": "drain", "worker": name})


class RefusedWorkerError(RuntimeError):
    """The only job that there was cannot use this worker: it has other data, or other software."""

    exit_status = 4


def _balancers(
    addresses: tuple[str, ...], weights: tuple[str, ...], keys: tuple[Path, ...]
) -> list[ServedBalancer]:
    """Return the balancers that are given; ValueError where something does not fit."""
    if len(keys) not in (0, 1, len(addresses)):
        raise ValueError(
            f"{len(keys)} --keys for {len(addresses)} addresses: give one for all, or one for each"
        )
    all_keys = [peer_keys(folder, "worker") for folder in keys]
    keys_by_address = all_keys if len(all_keys) == len(addresses) else all_keys * len(addresses)
    of_jobs = {checked_job(job): weight for job, weight in map(_weighted, weights)}
    balancers = []
    for number, place in enumerate(addresses):
        address, weight = _weighted(place) if "=" in place else (place, 1.0)
        balancer_keys = keys_by_address[number] if all_keys else None
        balancers.append(ServedBalancer(checked_address(address), weight, of_jobs, balancer_keys))
    if len({(served.address, served.keys) for served in balancers}) < len(balancers):
        raise ValueError("an address is given twice: give it once, with the sum of its weights")
    return balancers


def _weighted(written: str) -> tuple[str, float]:
    """Return a name and its weight.

    >>> _weighted("tcp://10.0.0.1:5555=2")
    ('tcp://10.0.0.1:5555', 2.0)
    """
    name, _, text = written.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not name or not MIN_WEIGHT <= weight <= 1 / MIN_WEIGHT:
        raise ValueError(f"{written!r}: write NAME=WEIGHT, a weight between {MIN_WEIGHT} and 1000")
    return name, weight


def _open_source(
    described: dict[str, Any], root: Path, allow: tuple[str, ...], cache: Path | None
) -> Source:
    """Open what a job describes, and log how that went."""
    try:
        source = open_source(described, root, allow, cache)
    except Exception as error:
        logger.error("cannot do this job: %s", describe_error(error))
        raise
    logger.info("serving %d samples of %s", len(source), source_name(source))
    return source


def _open_way(balancer: str, serve: str, keys: PeerKeys | None, insecure: bool) -> FramesWay:
    """Return how frames travel: pulled by trainers if they can be, else through the balancer."""
    try:
        address = serving_address(balancer, serve, keys is not None, insecure)
    except NotServedError as error:
        if serve != NONE:
            logger.warning("decoded samples of jobs at %s are not pulled: %s", balancer, error)
        return FramesWay(None, why=str(error))
    pair, host, port = new_pair("worker") if keys else None, *address.rpartition(":")[::2]
    last = int(port) + MOST_PORTS - 1 if port.isdigit() and int(port) else 0
    while True:
        try:
            server = PullServer(address, pair, FrameStore())
        except OSError:  # another job's frames are served there
            if int(address.rpartition(":")[2].replace("*", "0")) >= last:
                raise
            address = f"{host}:{int(address.rpartition(':')[2]) + 1}"
        else:
            return FramesWay(server, shown_address(server.endpoint, balancer))


def _memory_bytes() -> int:
    """Return the bytes that this process may keep: a host has a worker for each core."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    limits = [memory_limit(), int(match[1]) << 10 if match else None, MAX_KEPT_BYTES]
    return min(limit for limit in limits if limit is not None) // (os.cpu_count() or 1)
