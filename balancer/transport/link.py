"""A peer's connection to the balancer, and what wakes it up."""

from collections.abc import Sequence

import zmq

from ..protocol.messages import Message
from .keys import PeerKeys
from .sockets import Handshakes, Received, connect, receive, send


class Link:
    """A peer's connection to the balancer. Not thread-safe; call `close()`."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        name: bytes,
        keys: PeerKeys | None = None,
    ) -> None:
        """Connect (in the background); with keys only to the balancer that they name.

        `poller` wakes up for messages, and for what else is registered there.
        """
        self._socket = connect(context, endpoint, name, keys, monitored=Handshakes.EVENTS)
        self.handshakes = Handshakes(self._socket, keyed=keys is not None)
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Send a message; one that cannot be sent is lost."""
        send(self._socket, message, payloads)

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        return receive(self._socket)

    def close(self, linger_ms: int) -> None:
        """Close the sockets; messages that were sent may need `linger_ms` to leave."""
        self.handshakes.close()
        self._socket.close(linger=linger_ms)
