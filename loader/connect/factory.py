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

from ...balancer.job.flag import uses_pools
from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.transport.finding import BALANCER_VARIABLE, checked_address
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.naming import checked_job, default_job
from ...workers.arena.transport import Transport
from ...workers.sources.fingerprint import digest
from ...workers.sources.interface import Source, source_name
from ..balanced.arrivals import MicrobatchSource
from ..collate.chosen import BatchMaker
from ..local.workers import WorkerStart
from ..remote.processes import OTHERS_S, LocalProcesses, shared
from ..step.ranks import Place, has_process_group
from .balancer_process import EmbeddedBalancer
from .embedded import WorkerConfig, serve_samples, start_workers
from .memory_limit import memory_limit, refuse_budget_over_limit
from .remote import Connection, Party
from .rendezvous import Rendezvous, open_meeting

logger = logging.getLogger(__name__)


class LocalConnection(Connection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self,
        start: WorkerStart,
        config: WorkerConfig,
        balancer: EmbeddedBalancer | None,
        party: Party,
        job: JobSpec,
        prefetch: int,
        peers: Rendezvous,
    ) -> None:
        """Make a connection; `balancer` is the one that all use, where this process has it."""
        self._start, self._config, self._meeting = start, config, peers
        self._processes = processes = LocalProcesses(balancer)
        self._told_of_end = 0
        patience_s = OTHERS_S if balancer is not None else 0.0
        super().__init__(
            config.endpoint, party, to_json(job), prefetch, watch=processes.failure,
            peers=peers, patience_s=patience_s,
        )  # fmt: skip
        if balancer is not None:
            shared.add(self)

    def finish(self) -> None:
        """End the workers, unless they are persistent; nothing in a forked copy of the trainer."""
        if os.getpid() != self._sockets.owner or self._start.persistent:
            return
        with self._sockets.lock:
            self._end_workers()
            self._puller.close()

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        super().close()
        self._processes.end_workers()
        if self._processes.balancer is not None:
            self._processes.balancer.close()
        shared.discard(self)

    def _prepare_run(self) -> None:
        """Start the workers, while this connection has no sockets."""
        if self._processes.pool is not None and self._start.persistent:
            return
        # Said before others start: the data may have changed, and nobody may be left who differs.
        self._end_workers()
        if self._sockets.is_open:
            # Of a connection that is replaced nothing is read any more.
            self._await_pong(self._told_of_end)
            self.session.ended = ()
        self._sockets.suspend()
        with self._meeting.telling():
            started = start_workers(self._start, self._config, serve_samples)
            self._processes.pool, self._processes.names = started
            self._sockets.watch(self._processes.descriptors())

    def _await_start(self) -> None:
        """Wait for the balancer, if it is ours; LoaderError with its own message.

        What the balancer is told has been sent meanwhile.
        """
        with self._meeting.telling():
            try:
                if self._processes.balancer is not None:
                    self._processes.balancer.wait_ready()
            except Exception:
                self._sockets.give_up()
                raise

    def _end_workers(self) -> None:
        """End the workers, and tell the balancer which have ended."""
        names = self._processes.end_workers()
        self._sockets.watch(self._processes.descriptors())
        if names:
            self._send(self.session.end_workers(names))
            self._told_of_end = self._ping()


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
            party = replace(self._party(), job=name)
            if uses_pools():
                from ..remote import batch_reader, connection

                reader = batch_reader.BatchReader(job, self.batches, self.takes_empty)
                return connection.TrainerConnection(
                    address, self.place, reader, self.prefetch, party.name, name, keys
                )
            return Connection(address, party, to_json(job), self.prefetch, keys=keys)
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
        # A source is told from others of the same job without reading it; whether two that look the
        # same are the same the workers' fingerprints say.
        data = digest([source_name(self.source), len(self.source)])
        peers = Rendezvous(meeting, self.name, self.place.played[0], data, to_json(job))
        balancer = self._start_balancer(job, peers) if peers.claim() else None
        endpoint = balancer.endpoint if balancer else peers.wait_for_address()
        start = self.start
        config = WorkerConfig(self.job, self.source, endpoint, start.begin, start.threads)
        if uses_pools():
            from ..remote import batch_reader, host

            # fields are each process' own: workers of all make whole batches
            config = replace(config, collate=replace(self.batches, fields=None).in_worker)
            reader = batch_reader.BatchReader(job, self.batches, self.takes_empty, on_host=True)
            return host.HostConnection(
                start, config, balancer, self.place, reader, self.prefetch, self._party().name,
                peers,
            )  # fmt: skip
        return LocalConnection(start, config, balancer, self._party(), job, self.prefetch, peers)

    def _start_balancer(self, job: JobSpec, peers: Rendezvous) -> EmbeddedBalancer:
        """Start the balancer for all, and tell them where it is, or why there is none."""
        try:
            balancer = EmbeddedBalancer(None if uses_pools() else job)
            balancer.wait_ready()
        except Exception as error:
            peers.give_up(str(error))
            raise
        peers.publish(balancer.endpoint)
        return balancer

    def _party(self) -> Party:
        """Return how this process introduces itself to the balancer."""
        process = dist.get_rank() if has_process_group() else 0
        name = f"process {process} (host {socket.gethostname()}, pid {os.getpid()})"
        return Party(self.place.played, self.place.sharer, name)
