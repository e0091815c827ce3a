"""The processes that a trainer starts for ranks which it shares: they end with its connection."""

import atexit
import weakref
from typing import Any

from ...workers.processes.pool import Pool
from ..connect.balancer_process import EmbeddedBalancer

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


# Connections whose balancer serves other ranks too: at exit they must be closed before the pools.
shared: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _close_shared() -> None:
    for connection in list(shared):
        connection.close()


atexit.register(_close_shared)
