"""A process' connection to the balancer of its host, which it or another of them has started.

Its workers are processes of its own: they collate with the function that the loader has, and send
any object. They are started anew for each run, as torch's are, or once if they are persistent.
"""

import atexit
import contextlib
import os
import weakref
from dataclasses import replace
from typing import NoReturn

from ...balancer.job.messages import LeavePool
from ...balancer.run.arrivals import RunStart
from ...balancer.transport.naming import DEFAULT_JOB
from ...workers.processes.pool import Pool
from ..balanced.settings import WorkerStart
from ..step.errors import LoaderError
from ..step.ranks import Place
from .balancer_process import EmbeddedBalancer
from .batch_reader import BatchReader
from .connection import TrainerConnection
from .host_workers import WorkerConfig, serve_parts, start_workers
from .rendezvous import Rendezvous

# The process that runs the balancer waits at most this long at its end: the others take their last
# batches from it, and may be slow.
OTHERS_S = 30.0


class LocalProcesses:
    """The processes of one connection: its workers, and the balancer unless others have it."""

    def __init__(self, balancer: EmbeddedBalancer | None) -> None:
        self.balancer = balancer
        self.pool: Pool | None = None
        self.names: tuple[str, ...] = ()

    def descriptors(self) -> set[int]:
        """Return what to poll: if one is readable, `failure` may have a reason."""
        return {each.fileno() for each in (self.balancer, self.pool) if each is not None}

    def failure(self) -> str:
        """Return why the run cannot go on, empty while it can."""
        reasons = (each.failure() for each in (self.balancer, self.pool) if each is not None)
        return next(filter(None, reasons), "")

    def end_workers(self) -> tuple[str, ...]:
        """End the workers and wait until they are gone; return their names."""
        pool, self.pool = self.pool, None
        if pool is None:
            return ()
        pool.close()
        return self.names


class HostConnection(TrainerConnection):
    """A connection whose processes are its own: they end with it."""

    def __init__(
        self, start: WorkerStart, config: WorkerConfig, balancer: EmbeddedBalancer | None,
        place: Place, reader: BatchReader, prefetch: int, name: str, peers: Rendezvous,
    ) -> None:  # fmt: skip
        """Make a connection; `balancer` is the one that all use, where this process has it.

        peers: the processes that share it, which are told why this one cannot go on.
        """
        self._start, self._config, self._peers = start, config, peers
        self._processes = processes = LocalProcesses(balancer)
        super().__init__(
            config.endpoint, place, reader, prefetch, name, DEFAULT_JOB,
            patience_s=0.0 if balancer is None else OTHERS_S, watch=processes.failure,
        )  # fmt: skip
        if balancer is not None:
            shared.add(self)

    def begin(self, start: RunStart) -> None:
        """Start the workers, while this connection has no sockets, and the next run."""
        with self._lock():
            if self._processes.pool is None or not self._start.persistent:
                self._end_workers()
                self._sockets.link()  # the job is to be there when its workers come
                self._sockets.suspend()
                run = -1 if self._start.persistent else self.session.run + 1
                try:
                    with self._peers.telling():
                        self._processes.pool, self._processes.names = start_workers(
                            self._start, replace(self._config, run=run), serve_parts
                        )
                except RuntimeError as error:  # as if it had come after they were ready
                    raise LoaderError(str(error)) from error
                self._sockets.watch(self._processes.descriptors())
            super().begin(start)

    def finish(self) -> None:
        """End the workers, unless they are persistent; nothing in a forked copy of the trainer."""
        if os.getpid() == self._sockets.owner and not self._start.persistent:
            with self._sockets.lock:
                self._end_workers()
                self._puller.close()

    def close(self) -> None:
        """Leave the balancer and end the processes; wait for other ranks that need the balancer."""
        if self._processes.balancer is None and self._sockets.is_open:
            self.finish()
        super().close()
        self._processes.end_workers()
        if self._processes.balancer is not None:
            self._processes.balancer.close()
        shared.discard(self)

    def _end_workers(self) -> None:
        """End the workers, and tell the balancer which have ended."""
        names = self._processes.end_workers()
        self._sockets.watch(self._processes.descriptors())
        if names:
            self._sockets.link().send(LeavePool(names))

    def _check_silence(self) -> None:
        self._check_processes()
        if reason := self._peers.why_apart():
            self._sockets.give_up()
            self._fail(reason)
        super()._check_silence()

    def _fail(self, reason: str) -> NoReturn:
        if reason == self.session.failure and not self.session.comes_again:
            # One that has not joined the run yet may find no balancer to tell it. Its store may be
            # gone as well, which is no reason to hide this one.
            with contextlib.suppress(RuntimeError):
                self._peers.give_up(reason, "go on")
        super()._fail(reason)


# Connections whose balancer serves other ranks too: at exit they must be closed before the pools.
shared: "weakref.WeakSet[HostConnection]" = weakref.WeakSet()


def _close_shared() -> None:
    for connection in list(shared):
        connection.close()


atexit.register(_close_shared)
