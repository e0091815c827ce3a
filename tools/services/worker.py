"""`counterpoise worker`: a process that reads, decodes and streams samples for a balancer."""

import functools
import logging
import os
import socket
from pathlib import Path
from typing import Any

import click
import torch

from ...balancer.transport.keys import PeerKeys, new_pair, peer_keys
from ...loader.connect.memory_limit import memory_limit
from ...workers.daemon.heartbeats import Identity
from ...workers.daemon.loop import run_worker
from ...workers.daemon.payloads import Payloads, served_by
from ...workers.daemon.source_handler import SourceHandler
from ...workers.serving.address import AUTO, NotServedError, serving_address, shown_address
from ...workers.serving.server import PullServer
from ...workers.sources.failures import describe_error
from ...workers.sources.interface import Source, source_name
from ...workers.sources.measuring import MAX_THREADS
from ...workers.sources.randomness import own_generators
from ...workers.sources.registry import open_source, registered
from ...workers.stores.allowed import restrict_urls
from ...workers.stores.obstore_store import forks_no_more
from ..console.signals import stop_on_signal
from ..doctor.installation import available_bytes

logger = logging.getLogger("counterpoise")

# Kept for ranks by all workers of a host at most, where nothing else limits it.
MAX_KEPT_BYTES = 1 << 40


@click.command("worker")
@click.argument("balancer", metavar="ADDRESS")
@click.option(
    "--root",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read only below this folder.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="PACKAGE.MODULE:FUNCTION",
    help="Run this transform if a job asks for it (besides the registered ones); repeatable.",
)
@click.option(
    "--allow-url",
    multiple=True,
    metavar="PREFIX",
    help="Read URLs below this one if a job names them, as s3://bucket/train/; repeatable.",
)
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="This worker's keys, made by counterpoise keygen.",
)
@click.option(
    "--serve",
    default=AUTO,
    show_default=True,
    metavar="ADDRESS",
    help="Where ranks pull decoded samples: auto, the interface that reaches the balancer; "
    "tcp://HOST:PORT; none, they travel through the balancer.",
)
@click.option(
    "--insecure", is_flag=True, help="Without keys, serve where other hosts can reach it."
)
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for indexes and costs.")
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    show_default=True,
    help="Threads that decode; more than one only where the transform says that it is thread_safe.",
)
@click.option(
    "--until-lost",
    type=float,
    metavar="SECONDS",
    help="End when no balancer has answered for this long (default: wait for ever).",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0.0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Asked to end (SIGTERM, Ctrl-C), finish what is leased and wait this long at most until "
    "ranks have taken it; asked again, end at once.",
)
def command(
    balancer: str,
    root: Path,
    allow: tuple[str, ...],
    allow_url: tuple[str, ...],
    keys: Path | None,
    serve: str,
    insecure: bool,
    cache: Path | None,
    threads: int,
    until_lost: float | None,
    drain: float,
) -> None:
    """Work for the balancer at ADDRESS until it says goodbye.

    \b
    Example:
      counterpoise worker tcp://10.0.0.1:5555 --root /data --allow mylab.augment:crop
    """  # noqa: D301
    registered(allow)
    restrict_urls(allow_url)
    if allow_url:
        forks_no_more()
    own = peer_keys(keys, "worker") if keys is not None else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)  # a host has a worker, or a decode thread, for each core
    build = functools.partial(_open_source, root=root, allow=allow, cache=cache)
    handler = SourceHandler(None, (), 0, local=False, build=build, threads=threads)
    identity = Identity(f"{socket.gethostname()}/{os.getpid()}", os.getpid(), 0)
    logger.info("working for %s, reading below %s", balancer, root)
    payloads = _payloads(balancer, serve, own, insecure)
    logger.info("decoded samples: %s", payloads.way)
    try:
        with own_generators(), stop_on_signal() as stop:
            reason = run_worker(balancer, identity, handler, stop, until_lost, own, payloads, drain)
    finally:
        handler.close()
        payloads.close()
    if reason:
        raise ValueError(reason)


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


def _payloads(balancer: str, serve: str, own: PeerKeys | None, insecure: bool) -> Payloads:
    """Return how payloads travel: pulled by ranks if they can be, else through the balancer."""
    try:
        address = serving_address(balancer, serve, own is not None, insecure)
        server = PullServer(address, _memory_bytes(), new_pair("worker") if own else None)
        return served_by(server, shown_address(server.endpoint, balancer))
    except NotServedError as error:
        return Payloads(None, str(error))


def _memory_bytes() -> int:
    """Return the bytes that this process may keep: a host has a worker for each core."""
    limits = [memory_limit(), available_bytes()]
    return min(each for each in (*limits, MAX_KEPT_BYTES) if each is not None) // (
        os.cpu_count() or 1
    )
