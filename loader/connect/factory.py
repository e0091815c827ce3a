"""Makes a balanced loader's connection: in this process, to local processes, or elsewhere."""

import atexit
import contextlib
import weakref
from dataclasses import dataclass

from ...balancer.protocol.job_spec import JobSpec, to_json
from ...balancer.transport.keys import PeerKeys
from ...workers.processes.pool import Pool
from ...workers.sources.interface import Source
from ..balanced.microbatches import MicrobatchSource
from ..step.errors import LoaderError
from ..step.topology import is_distributed, share
from .embedded import PoolConfig, failure, start_embedded
from .in_process import InProcessConnection
from .remote import Connection

# Rank 0 waits at most this long at its end: the other ranks take their last batches from it.
OTHERS_S = 10.0


class LocalConnection(Connection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self,
        pool: Pool,
        endpoint: str,
        played: tuple[int, ...],
        job: JobSpec,
        prefetch: int,
        shared: bool = False,
    ) -> None:
        """Connect to the pool's balancer, which other ranks use too if `shared`."""
        self._pool = pool
        super().__init__(
            endpoint,
            played,
            to_json(job),
            prefetch,
            watch=lambda: failure(pool),
            watched_fd=pool.fileno(),
            patience_s=OTHERS_S if shared else 0.0,
            needed=pool,
        )
        if shared:
            _shared.add(self)

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        super().close()
        self._pool.close()
        _shared.discard(self)


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
    workers: int
    prefetch: int
    method: str
    balancer: str | None
    keys: PeerKeys | None = None

    def connect(self) -> MicrobatchSource:
        """Connect, starting processes where no address was given; all ranks call it together.

        Raises LoaderError and ValueError that say what to do.
        """
        if self.balancer is not None:
            job = to_json(self.job)
            return Connection(self.balancer, self.played, job, self.prefetch, keys=self.keys)
        if self.source is None:
            raise ValueError("a RemoteDataset needs balancer='tcp://HOST:PORT'")
        if len(self.played) == self.job.ranks:
            return self._alone()
        if not is_distributed():
            raise ValueError(
                "several ranks without torch.distributed cannot find each other: start "
                "`counterpoise balancer` and give balancer='tcp://HOST:PORT' to all"
            )
        if self.workers == 0:
            raise ValueError("several ranks share their workers: give num_workers >= 1")
        return self._together()

    def _alone(self) -> MicrobatchSource:
        if self.workers == 0:
            return InProcessConnection(self.job, self._needed_source(), self.played)
        pool = self._start("")
        return LocalConnection(pool, pool.endpoint, self.played, self.job, self.prefetch)

    def _together(self) -> MicrobatchSource:
        """Start the balancer on rank 0, and on every rank workers that connect to it."""
        if 0 in self.played:
            try:
                pool = self._start("")
            except Exception as error:
                with contextlib.suppress(LoaderError):
                    share("", str(error))
                raise
            endpoint = share(pool.endpoint, "")
        else:
            endpoint = share("", "")
            pool = self._start(endpoint)
        first = 0 in self.played
        return LocalConnection(pool, endpoint, self.played, self.job, self.prefetch, shared=first)

    def _start(self, endpoint: str) -> Pool:
        payload = PoolConfig(self.job, self._needed_source(), endpoint)
        return start_embedded(payload, self.workers, self.method)

    def _needed_source(self) -> Source:
        if self.source is None:
            raise LoaderError("there is no data to read on this machine")
        return self.source
