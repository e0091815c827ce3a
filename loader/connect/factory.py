"""Makes a balanced loader's connection: in this process, to local processes, or elsewhere."""

import atexit
import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch.distributed as dist

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.transport.keys import PeerKeys
from ...workers.arena.transport import Transport
from ...workers.sources.interface import Source, source_name
from ..balanced.arrivals import MicrobatchSource
from ..local.workers import WorkerStart
from ..step.errors import LoaderError
from ..step.ranks import Place, has_process_group
from .balancer_process import EmbeddedBalancer
from .embedded import LocalProcesses, WorkerConfig
from .memory_limit import memory_limit, refuse_budget_over_limit
from .remote import Connection, Party
from .rendezvous import Meeting, Rendezvous, digest, open_meeting

# The process that runs the balancer waits at most this long at its end: the others take their last
# batches from it, and may be slow.
OTHERS_S = 30.0


class LocalConnection(Connection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self,
        processes: LocalProcesses,
        endpoint: str,
        party: Party,
        job: JobSpec,
        prefetch: int,
        peers: Rendezvous | None = None,
    ) -> None:
        """Make a connection to a balancer, which other processes use too if there are `peers`."""
        self._processes = processes
        self._told_of_end = 0
        shared = peers is not None and processes.balancer is not None
        patience_s = OTHERS_S if shared else 0.0
        super().__init__(
            endpoint, party, to_json(job), prefetch, watch=processes.failure,
            peers=peers, patience_s=patience_s,
        )  # fmt: skip
        if shared:
            _shared.add(self)

    def finish(self) -> None:
        """End the workers, unless they are persistent; nothing in a forked copy of the trainer."""
        if os.getpid() != self._sockets.owner:
            return
        with self._sockets.lock:
            self._report_ended(self._processes.finish())
            if not self._processes.are_kept():
                self._puller.close()

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        super().close()
        self._processes.close()
        _shared.discard(self)

    def _prepare_run(self) -> None:
        """Start the workers, while this connection has no sockets."""
        if self._processes.are_kept():
            return
        # Said before others start: the data may have changed, and nobody may be left who differs.
        self._report_ended(self._processes.end_workers())
        if self._sockets.is_open:
            # Of a connection that is replaced nothing is read any more.
            self._await_pong(self._told_of_end)
            self.session.ended = ()
        self._sockets.suspend()
        with self._telling_peers():
            self._processes.start_workers()
            self._sockets.watch(self._processes.descriptors())

    def _await_start(self) -> None:
        """Wait for processes that still start: the balancer, and the supervisor's workers.

        What the balancer is told has been sent meanwhile. LoaderError with a process' own message.
        """
        with self._telling_peers():
            try:
                self._processes.wait_ready()
            except Exception:
                self._sockets.give_up()
                raise

    @contextmanager
    def _telling_peers(self) -> Iterator[None]:
        """Tell the processes that share the balancer why this one cannot go on, if it cannot."""
        try:
            yield
        except Exception as error:
            if self._peers is not None:
                self._peers.give_up(str(error))
            if isinstance(error, RuntimeError):  # as if it had come after they were ready
                raise LoaderError(str(error)) from error
            raise

    def _report_ended(self, names: tuple[str, ...]) -> None:
        """Tell the balancer which workers have ended."""
        self._sockets.watch(self._processes.descriptors())
        if names:
            self._send(self.session.end_workers(names))
            self._told_of_end = self._ping()


# Connections whose balancer serves other ranks too: at exit they must be closed before the pools.
_shared: "weakref.WeakSet[LocalConnection]" = weakref.WeakSet()


def _close_shared() -> None:
    for connection in list(_shared):
        connection.close()


atexit.register(_close_shared)


@dataclass(frozen=True, slots=True)
class ConnectionFactory:
    """Makes the connection; `source` is None if only remote workers can read the data."""

    job: JobSpec
    source: Source | None
    place: Place
    start: WorkerStart
    prefetch: int
    balancer: str | None
    keys: PeerKeys | None = None
    name: str = ""
    transport: Transport = "auto"

    def connect(self) -> MicrobatchSource:
        """Make the connection, and the balancer where no address was given.

        Processes find each other in a key-value store, whenever each of them comes. Raises
        LoaderError and ValueError that say what to do.
        """
        if self.balancer is not None:
            job = to_json(self._carried_job)
            return Connection(self.balancer, self._party(), job, self.prefetch, keys=self.keys)
        if self.source is None:
            raise ValueError("a RemoteDataset needs balancer='tcp://HOST:PORT'")
        if self.start.workers:
            refuse_budget_over_limit(self.job.buffer_bytes, memory_limit())
        if self.place.is_alone:  # nobody to meet
            balancer = EmbeddedBalancer(self._carried_job)
            return self._local(self.source, balancer.endpoint, balancer)
        meeting = open_meeting(self.place)
        if self.start.workers == 0:
            raise ValueError(
                "several processes share their workers, and decode each sample once: give "
                "num_workers >= 1"
            )
        return self._together(meeting, self.source)

    @property
    def _carried_job(self) -> JobSpec:
        """The job, with how payloads travel."""
        ways = {"direct": "direct", "inline": "inline"}
        return replace(self.job, transport=ways.get(self.transport, "auto"))

    def _together(self, meeting: Meeting, source: Source) -> MicrobatchSource:
        """Start the balancer unless another process has claimed to; workers of all connect to it.

        A source is told from others of the same job without reading it; whether two that look the
        same are the same the workers' fingerprints say.
        """
        data = digest(source_name(source), str(len(source)))
        rank, job = self.place.played[0], to_json(self._carried_job)
        peers = Rendezvous(meeting, self.name, rank, data, job)
        if not peers.claim():
            return self._local(source, peers.wait_for_address(), None, peers)
        try:
            balancer = EmbeddedBalancer(self._carried_job)
            balancer.wait_ready()
        except Exception as error:
            peers.give_up(str(error))
            raise
        peers.publish(balancer.endpoint)
        return self._local(source, balancer.endpoint, balancer, peers)

    def _local(
        self,
        source: Source,
        endpoint: str,
        balancer: EmbeddedBalancer | None,
        peers: Rendezvous | None = None,
    ) -> LocalConnection:
        start = self.start
        config = WorkerConfig(self.job, source, endpoint, start.begin, start.threads)
        processes = LocalProcesses(self.start, config, balancer)
        job = self._carried_job
        return LocalConnection(processes, endpoint, self._party(), job, self.prefetch, peers)

    def _party(self) -> Party:
        """Return how this process introduces itself to the balancer."""
        process = dist.get_rank() if has_process_group() else 0
        name = f"process {process} (host {socket.gethostname()}, pid {os.getpid()})"
        return Party(self.place.played, self.place.sharer, name)
