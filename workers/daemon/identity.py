"""Names a worker: its slot on its host, and how often it was started there."""

import os
import socket as sockets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker: `name` is its slot on its host, `incarnation` grows."""

    name: str
    slot: int
    incarnation: int

    @property
    def routing_id(self) -> bytes:
        """A socket identity that no other process has."""
        return f"{self.name}.{self.incarnation}.{os.getpid()}".encode()


def local_name(pool: str, slot: int) -> str:
    """Return the name of the worker that a pool on this host has in a slot."""
    return f"{sockets.gethostname()}/{pool}/{slot}"
