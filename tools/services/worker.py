"""`counterpoise worker`: a process that reads, decodes and streams samples for a balancer."""

import logging
import os
import socket
from pathlib import Path
from typing import Any

import click
import torch

from ...balancer.transport.keys import peer_keys
from ...workers.daemon.loop import Identity, run_worker
from ...workers.daemon.source_handler import SourceHandler
from ...workers.processes.pool_job import describe_error
from ...workers.sources.format_registry import open_source
from ...workers.sources.interface import Source, source_name
from ...workers.sources.randomness import own_generators
from ...workers.sources.transform_registry import registered
from ..console.signals import stop_on_signal

logger = logging.getLogger("counterpoise")


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
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="This worker's keys, made by counterpoise keygen.",
)
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for indexes and costs.")
@click.option(
    "--until-lost",
    type=float,
    metavar="SECONDS",
    help="End when no balancer has answered for this long (default: wait for ever).",
)
def command(
    balancer: str,
    root: Path,
    allow: tuple[str, ...],
    keys: Path | None,
    cache: Path | None,
    until_lost: float | None,
) -> None:
    """Work for the balancer at ADDRESS until it says goodbye.

    \b
    Example:
      counterpoise worker tcp://10.0.0.1:5555 --root /data --allow mylab.augment:crop
    """  # noqa: D301
    registered(allow)
    own = peer_keys(keys, "worker") if keys is not None else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    def build(described: dict[str, Any]) -> Source:
        try:
            source = open_source(described, root, allow, cache)
        except Exception as error:
            logger.error("cannot do this job: %s", describe_error(error))
            raise
        logger.info("serving %d samples of %s", len(source), source_name(source))
        return source

    torch.set_num_threads(1)  # a host has a worker for each core
    handler = SourceHandler(None, (), 0, local=False, build=build)
    identity = Identity(f"{socket.gethostname()}/{os.getpid()}", os.getpid(), 0)
    logger.info("working for %s, reading below %s", balancer, root)
    with own_generators(), stop_on_signal() as stop:
        reason = run_worker(balancer, identity, handler, stop, until_lost, own)
    if reason:
        raise ValueError(reason)
