"""Makes a loader's connection to a balancer: one elsewhere, or one for the processes of this host.

The latter are processes that share data-parallel ranks. One of them starts the balancer, a clean
process that lives as long as its connection, and each has a pool of workers, started as torch would
start them: anew for every run (so that they have the data set as it is then), or once if they are
persistent.
"""

import logging
import os
import socket
from dataclasses import replace

import torch.distributed as dist

from ...balancer.protocol.job_spec import to_json
from ...balancer.transport.finding import BALANCER_VARIABLE, checked_address
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import checked_job, default_job
from ...workers.sources.interface import source_name
from ..balanced.settings import LoopSettings
from ..balanced.source import MicrobatchSource
from ..step.ranks import has_process_group
from .balancer_process import EmbeddedBalancer
from .batch_reader import BatchReader
from .connection import TrainerConnection
from .host import HostConnection, WorkerConfig
from .memory_limit import memory_limit, refuse_budget_over_limit
from .rendezvous import Rendezvous, open_meeting

logger = logging.getLogger(__name__)


def connect(settings: LoopSettings, keys: PeerKeys | None = None) -> MicrobatchSource:
    """Make the connection, and the balancer where no address was given.

    Processes find each other in a key-value store, whenever each of them comes. Raises LoaderError
    and ValueError that say what to do.
    """
    local, place, job, start = settings.local, settings.place, settings.job, settings.local.start
    balancer = local.arguments.balancer
    if balancer.address is not None:
        address, is_fleet = balancer.address, not isinstance(balancer.address, str)
        if not isinstance(address, str):
            address, keys = address.join()
        logger.info(
            "remote wing: goes through the balancer at %s, because %s was given", address,
            "balancer=, a fleet," if is_fleet else f"balancer= or {BALANCER_VARIABLE}",
        )  # fmt: skip
        address, job_of_keys = checked_address(address), keys.job if keys else ""
        name = checked_job(balancer.job or job_of_keys or default_job())
        reader = BatchReader(job, local.batches, local.takes_empty)
        return TrainerConnection(address, place, reader, local.prefetch, _own_name(), name, keys)
    if local.source is None:
        raise ValueError("a RemoteDataset needs balancer='tcp://HOST:PORT'")
    refuse_budget_over_limit(job.buffer_bytes, memory_limit())
    meeting = open_meeting(place)
    if start.workers == 0:
        raise ValueError(
            "several processes share their workers, and decode each sample once: give "
            "num_workers >= 1"
        )
    logger.info(
        "remote wing: goes through a balancer that is started on this host, because %d processes "
        "share data-parallel rank %s and decode each sample once",
        place.sharers, ", ".join(map(str, place.played)),
    )  # fmt: skip
    # Without reading it: whether what looks the same is the same workers' fingerprints say.
    data = f"{source_name(local.source)}, {len(local.source)} samples"
    facts = {"data": data, "configuration": to_json(job)}
    peers = Rendezvous(meeting, local.arguments.ranks.name, facts)
    embedded = _start_balancer(peers) if peers.claim() else None
    endpoint = embedded.endpoint if embedded else peers.wait_for_address()
    # fields are each process' own: workers of all make whole batches
    config = WorkerConfig(
        settings.job, local.source, endpoint, start.begin, start.threads,
        collate=replace(local.batches, fields=None).in_worker,
    )  # fmt: skip
    reader = BatchReader(job, local.batches, local.takes_empty, on_host=True)
    return HostConnection(
        start, config, embedded, place, reader, local.prefetch, _own_name(), peers
    )


def _start_balancer(peers: Rendezvous) -> EmbeddedBalancer:
    """Start the balancer for all, and tell them where it is, or why there is none."""
    with peers.telling():
        balancer = EmbeddedBalancer()
        balancer.wait_ready()
    peers.publish(balancer.endpoint)
    return balancer


def _own_name() -> str:
    """Return how this process introduces itself to the balancer."""
    process = dist.get_rank() if has_process_group() else 0
    return f"process {process} (host {socket.gethostname()}, pid {os.getpid()})"
