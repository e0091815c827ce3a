"""A port that a process of a test listens at, which no other process is given meanwhile."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this machine: it is bound, and nobody listens.

    The system gives it to nobody who asks for any port. Those who name it can listen at it, if they
    set SO_REUSEADDR, as ZeroMQ and torch's stores do; without them connections are refused.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
