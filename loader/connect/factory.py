"""Makes a balanced loader's connection: in this process, to local processes, or elsewhere."""

import atexit
import contextlib
import os
import weakref
from dataclasses import dataclass

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.protocol.messages import Message
from ...balancer.transport.keys import PeerKeys
from ...workers.sources.interface import Source
from ..balanced.microbatches import MicrobatchSource
from ..step.errors import LoaderError
from ..step.topology import is_distributed, share
from .balancer_process import EmbeddedBalancer
from .embedded import LocalProcesses, WorkerConfig, WorkerStart
from .in_process import InProcessConnection
from .remote import Connection

# Rank 0 waits at most this long at its end: the other ranks take their last batches from it.
OTHERS_S = 10.0


class LocalConnection(Connection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self,
        processes: LocalProcesses,
        endpoint: str,
        played: tuple[int, ...],
        job: JobSpec,
        prefetch: int,
        shared: bool = False,
    ) -> None:
        """Make a connection to a balancer, which other ranks use too if `shared`."""
        self._processes = processes
        # Ended workers that the balancer was not told of.
        self._ended: tuple[str, ...] = ()
        patience_s = OTHERS_S if shared else 0.0
        super().__init__(
            endpoint, played, to_json(job), prefetch,
            watch=processes.failure, patience_s=patience_s, needed=processes,
        )  # fmt: skip
        if shared:
            _shared.add(self)

    def finish(self) -> None:
        """End the workers, unless they are persistent; nothing in a forked copy of the trainer."""
        if os.getpid() != self._sockets.owner:
            return
        with self._sockets.lock:
            self._ended += self._processes.finish()
            self._sockets.watch(self._processes.descriptors())

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        super().close()
        self._processes.close()
        _shared.discard(self)

    def _prepare_run(self) -> list[Message]:
        """Start the workers before there are sockets; return what the balancer must be told."""
        self._ended += self._processes.renew(before=self._sockets.suspend)
        self._sockets.watch(self._processes.descriptors())
        ended, self._ended = self._ended, ()
        return self.session.end_workers(ended) if ended else []


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
    played: tuple[int, ...]
    start: WorkerStart
    prefetch: int
    balancer: str | None
    keys: PeerKeys | None = None

    def connect(self) -> MicrobatchSource:
        """Make the connection, and the balancer where no address was given; all ranks call it.

        Raises LoaderError and ValueError that say what to do.
        """
        if self.balancer is not None:
            job = to_json(self.job)
            return Connection(self.balancer, self.played, job, self.prefetch, keys=self.keys)
        if self.source is None:
            raise ValueError("a RemoteDataset needs balancer='tcp://HOST:PORT'")
        if len(self.played) == self.job.ranks:
            return self._alone(self.source)
        if not is_distributed():
            raise ValueError(
                "several ranks without torch.distributed cannot find each other: start "
                "`counterpoise balancer` and give balancer='tcp://HOST:PORT' to all"
            )
        if self.start.workers == 0:
            raise ValueError("several ranks share their workers: give num_workers >= 1")
        return self._together(self.source)

    def _alone(self, source: Source) -> MicrobatchSource:
        if self.start.workers == 0:
            return InProcessConnection(self.job, source, self.played)
        balancer = EmbeddedBalancer(self.job)
        return self._local(source, balancer.endpoint, balancer)

    def _together(self, source: Source) -> MicrobatchSource:
        """Start the balancer on rank 0; workers of every rank will connect to it."""
        if 0 not in self.played:
            return self._local(source, share("", ""), None)
        try:
            balancer = EmbeddedBalancer(self.job)
            balancer.wait_ready()
        except Exception as error:
            with contextlib.suppress(LoaderError):
                share("", str(error))
            raise
        return self._local(source, share(balancer.endpoint, ""), balancer, shared=True)

    def _local(
        self,
        source: Source,
        endpoint: str,
        balancer: EmbeddedBalancer | None,
        shared: bool = False,
    ) -> LocalConnection:
        config = WorkerConfig(self.job, source, endpoint)
        processes = LocalProcesses(self.start, config, balancer)
        return LocalConnection(
            processes, endpoint, self.played, self.job, self.prefetch, shared=shared
        )
