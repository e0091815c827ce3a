"""Decides who may connect to a worker's socket for pulls, and how many at a time.

Only ranks are told the credentials that the balancer has made for this worker: a password, or under
CURVE a key pair, whose public key the worker knows. libzmq asks here (ZAP, ZeroMQ RFC 27) before it
takes in a message. Of strangers, who get no further than the handshake, only some are refused in a
second: the others wait, and take none of the worker's time. Connections beyond a number are closed
at once, as the worker needs its open files for its data; those that exist stay. A rank that comes
in such a moment cannot pull, and gets its samples inline.
"""

import contextlib
import hmac
import os
import socket as sockets

import zmq

from ...balancer.transport.authentication import ZAP_ENDPOINT
from ...balancer.transport.keys import public_text
from ...balancer.transport.sockets import read_event_value

# Refusals in a turn, after which nobody is let in for PAUSE_S.
MOST_REFUSALS, PAUSE_S = 16, 0.25
# libzmq closes a connection that has not shown its credentials by then, in milliseconds.
HANDSHAKE_MS = 5_000
_OPENED, _CLOSED = zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED


class PullConnections:
    """The connections of one listening socket; belongs to the thread that serves.

    public, secret: what ranks connect with; nobody may while both are empty.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        socket: "zmq.Socket[bytes]",
        address: str,
        most_connections: int,
    ) -> None:
        """Listen at an address; `endpoint` is the one that was bound. ZMQError if it cannot be."""
        self.public = self.secret = b""
        self.connections = 0
        self.refused = 0
        self._most = most_connections
        self._closed_until = 0.0
        self._requests = context.socket(zmq.REP)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.bind(ZAP_ENDPOINT)
        self._monitor = socket.get_monitor_socket(_OPENED | _CLOSED)
        try:
            socket.bind(address)
        except zmq.ZMQError:
            self.close()
            raise
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def watch(self, poller: zmq.Poller, now: float) -> float:
        """Have a poller woken up by what `turn` is for; return until when it is not."""
        poller.register(self._monitor, zmq.POLLIN)
        poller.register(self._requests, zmq.POLLIN if now >= self._closed_until else 0)
        return self._closed_until

    def turn(self, now: float) -> None:
        """Count connections, and let ranks in."""
        while self._monitor.poll(0):
            event, descriptor = read_event_value(self._monitor)
            self.connections += 1 if event == _OPENED else -1
            if event == _OPENED and self.connections > self._most:
                self._shut(descriptor)
        refused = self.refused
        while now >= self._closed_until and self._requests.poll(0):
            self._answer()
            if self.refused >= refused + MOST_REFUSALS:
                self._closed_until = now + PAUSE_S

    def close(self) -> None:
        """Close the sockets."""
        self._requests.close(linger=0)
        self._monitor.close(linger=0)

    def _shut(self, descriptor: int) -> None:
        """End a connection that was just made; libzmq then closes it."""
        with (
            contextlib.suppress(OSError),  # it has ended
            sockets.socket(fileno=os.dup(descriptor)) as connection,
        ):
            name = connection.getsockname()  # of another file's, if the number is that by now
            here = f":{name[1]}" if isinstance(name, tuple) else f"//{name}"
            if self.endpoint.endswith(here):
                connection.shutdown(sockets.SHUT_RDWR)

    def _answer(self) -> None:
        version, number, _, _, _, mechanism, *credentials = self._requests.recv_multipart()
        is_rank = self._knows(mechanism, credentials)
        self.refused += not is_rank
        status, text = (b"200", b"OK") if is_rank else (b"400", b"not a rank of this job")
        self._requests.send_multipart([version, number, status, text, b"rank", b""])

    def _knows(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        """Return whether these are the credentials that ranks have been told."""
        if mechanism == b"CURVE" and self.public and len(credentials) == 1:
            return hmac.compare_digest(public_text(credentials[0]), self.public)
        if mechanism == b"PLAIN" and self.secret and len(credentials) == 2:
            return hmac.compare_digest(credentials[1], self.secret)
        return False
