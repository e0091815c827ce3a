"""Close the connection over which a message came: a ROUTER itself cannot.

libzmq tells the descriptor of a message's connection, which is reset here (connect(2) to no
address): the other side is told at once, and what it has sent and libzmq has not read is dropped by
the kernel, where a shutdown would have megabytes of it read first. For libzmq it is as if the peer
had reset it. But the connection may have ended since the message was received, and its number may
belong to another by now. So it must be a connection to this balancer's port, from the message's
host, and none that was let in later may have been heard of under that number: the authenticator
numbers those that it lets in. What cannot be excluded is a peer that has just connected and has
sent nothing yet: it connects again.
"""

import contextlib
import ctypes
import os
import socket as sockets

import zmq

from .sockets import serial_of

# A sockaddr of the family AF_UNSPEC.
NO_ADDRESS = bytes(16)
_libc = ctypes.CDLL(None, use_errno=True)


class Connections:
    """The connections of a ROUTER: of each descriptor the newest that has been heard of."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """`socket` is bound; connections of one that does not listen on tcp are never closed."""
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp:") else 0
        self._newest: dict[int, int] = {}

    def note(self, frame: zmq.Frame) -> None:
        """Note over which connection a message came; `frame` has its peer's name."""
        if self._port:
            with contextlib.suppress(zmq.ZMQError):
                number, serial = int(frame.get(zmq.SRCFD)), serial_of(frame)
                self._newest[number] = max(serial, self._newest.get(number, 0))

    def reset(self, frame: zmq.Frame) -> None:
        """Reset the connection over which a message came, unless it is somebody else's by now."""
        if not self._port:
            return
        with contextlib.suppress(OSError, ValueError, zmq.ZMQError):  # it has ended
            host, number = str(frame.get("Peer-Address")), int(frame.get(zmq.SRCFD))
            if serial_of(frame) >= self._newest.get(number, 0):
                with sockets.socket(fileno=os.dup(number)) as connection:
                    ends = connection.getsockname()[1], connection.getpeername()[0]
                    if ends == (self._port, host):
                        _libc.connect(connection.fileno(), NO_ADDRESS, len(NO_ADDRESS))
