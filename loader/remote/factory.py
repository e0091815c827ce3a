"""Makes a loader's connection to a balancer: one elsewhere, or one for the processes of this host.

The latter are processes that share data-parallel ranks. One of them starts the balancer, a clean
process that lives as long as its connection, and each has a pool of workers, started as torch would
start them: anew for every run (so that they have the data set as it is then), or once if they are
persistent.
"""

import logging
import os
import socket
from dataclasses import dataclass, replace
from typing import Protocol

import torch.distributed as dist

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.transport.finding import BALANCER_VARIABLE, checked_address
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import checked_job, default_job
from ...workers.arena.transport import Transport
from ...workers.sources.interface import Source, source_name
from ..balanced.arrivals import MicrobatchSource
from ..collate.chosen import BatchMaker
from ..local.workers import WorkerStart
from ..step.ranks import Place, has_process_group
from .balancer_process import EmbeddedBalancer
from .batch_reader import BatchReader
from .connection import TrainerConnection
from .host import HostConnection
from .host_workers import WorkerConfig
from .memory_limit import memory_limit, refuse_budget_over_limit
from .rendezvous import Rendezvous, open_meeting

logger = logging.getLogger(__name__)


class Fleet(Protocol):
    """Workers on a cluster and their balancer, such as `cp.fleet.Ray`."""

    def join(self) -> tuple[str, PeerKeys | None]:
        """Return the balancer's address, and the keys with which a trainer may come."""


@dataclass(frozen=True, slots=True)
class ConnectionFactory:
    """Makes the connection; `source` is None if only remote workers can read the data.

    job_name: that of the training run at a balancer that serves several; None for the default.
    """

    job: JobSpec
    source: Source | None
    place: Place
    start: WorkerStart
    prefetch: int
    batches: BatchMaker
    takes_empty: bool
    balancer: str | None
    keys: PeerKeys | None = None
    fleet: Fleet | None = None
    name: str = ""
    transport: Transport = "auto"
    job_name: str | None = None

    def connect(self) -> MicrobatchSource:
        """Make the connection, and the balancer where no address was given.

        Processes find each other in a key-value store, whenever each of them comes. Raises
        LoaderError and ValueError that say what to do.
        """
        ways = {"direct": "direct", "inline": "inline"}
        job = replace(self.job, transport=ways.get(self.transport, "auto"))
        if self.balancer is not None:
            address, keys = self.balancer, self.keys
            if self.fleet is not None:
                address, keys = self.fleet.join()
            logger.info(
                "remote wing: goes through the balancer at %s, because %s was given",
                address, "fleet=" if self.fleet else f"balancer= or {BALANCER_VARIABLE}",
            )  # fmt: skip
            address, of_keys = checked_address(address), keys.job if keys else ""
            name = checked_job(self.job_name or of_keys or default_job())
            reader = BatchReader(job, self.batches, self.takes_empty)
            return TrainerConnection(
                address, self.place, reader, self.prefetch, _own_name(), name, keys
            )
        if self.source is None:
            raise ValueError("a RemoteDataset needs balancer='tcp://HOST:PORT'")
        refuse_budget_over_limit(self.job.buffer_bytes, memory_limit())
        meeting = open_meeting(self.place)
        if self.start.workers == 0:
            raise ValueError(
                "several processes share their workers, and decode each sample once: give "
                "num_workers >= 1"
            )
        logger.info(
            "remote wing: goes through a balancer that is started on this host, because %d "
            "processes share data-parallel rank %s and decode each sample once",
            self.place.sharers, ", ".join(map(str, self.place.played)),
        )  # fmt: skip
        # Without reading it: whether what looks the same is the same workers' fingerprints say.
        data = f"{source_name(self.source)}, {len(self.source)} samples"
        peers = Rendezvous(meeting, self.name, {"data": data, "configuration": to_json(job)})
        balancer = self._start_balancer(peers) if peers.claim() else None
        endpoint = balancer.endpoint if balancer else peers.wait_for_address()
        # fields are each process' own: workers of all make whole batches
        config = WorkerConfig(
            self.job, self.source, endpoint, self.start.begin, self.start.threads,
            collate=replace(self.batches, fields=None).in_worker,
        )  # fmt: skip
        reader = BatchReader(job, self.batches, self.takes_empty, on_host=True)
        return HostConnection(
            self.start, config, balancer, self.place, reader, self.prefetch, _own_name(), peers
        )

    def _start_balancer(self, peers: Rendezvous) -> EmbeddedBalancer:
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
