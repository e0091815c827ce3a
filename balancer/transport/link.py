"""A peer's link to the balancer: one connection, and a second for bulk if the balancer offers it.

See sealing.py for what goes over the second, server/clear_payloads.py for the other end.
"""

import logging
import math
import time
from collections.abc import Sequence

import zmq

from ..protocol.messages import ClearPayloadOffer, Message
from ..protocol.wire import WireError
from .keys import PeerKeys
from .sealing import FROM_PEER, NO_BULK, AeadSeal, is_available
from .sockets import Handshakes, Received, connect, receive, receive_frames, send, send_frames

logger = logging.getLogger(__name__)

# What a balancer says under CURVE so long after bulk works shows that it has given it up.
SETTLED_S = 5.0


class Link:
    """Sends and receives messages, whichever way they go; of one thread, closed by `close`."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        name: bytes,
        keys: PeerKeys | None = None,
    ) -> None:
        """Connect (in the background); with keys only to the balancer that they name.

        `poller` wakes up for what can be received, and for what else is registered there.
        """
        self._context = context
        self._endpoint = endpoint
        # Secrets are taken under CURVE only.
        self._can_bulk = keys is not None and endpoint.startswith("tcp://") and is_available()
        self._socket = connect(context, endpoint, name, keys, watched=True)
        self.handshakes = Handshakes(self._socket, keyed=keys is not None)
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)
        self._bulk: _Bulk | None = None

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Send a message; one that cannot be sent is lost."""
        if self._bulk is not None and self._bulk.works_since < math.inf:
            self._bulk.send(message, payloads)
        else:
            send(self._socket, message, payloads)

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        while (received := receive(self._socket)) is not None:
            if isinstance(received[0], ClearPayloadOffer):
                self._heed(received[0])
                continue
            if self._bulk is not None and time.monotonic() > self._bulk.works_since + SETTLED_S:
                self.leave_bulk()
            return received
        try:
            return self._bulk.receive() if self._bulk is not None else None
        except WireError as error:
            logger.warning("payloads go on under CURVE: %s", error)
            self.leave_bulk()
            return None

    def leave_bulk(self) -> None:
        """Go on under CURVE, and say so, if there is a second connection."""
        if self._drop_bulk():
            send(self._socket, NO_BULK)

    def close(self, linger_ms: int) -> None:
        """Let go of the sockets; the last words may still be on their way."""
        self.handshakes.close()
        self._drop_bulk(linger_ms)
        self._socket.close(linger=linger_ms)

    def _heed(self, offer: ClearPayloadOffer) -> None:
        """Open the connection that is offered under CURVE, or give up the one there is."""
        self._drop_bulk()
        if self._can_bulk and offer.port:
            self._bulk = _Bulk(self._context, self._endpoint, offer)
            self.poller.register(self._bulk.socket, zmq.POLLIN)

    def _drop_bulk(self, linger_ms: int = 0) -> bool:
        bulk, self._bulk = self._bulk, None
        if bulk is not None:
            self.poller.unregister(bulk.socket)
            bulk.socket.close(linger=linger_ms)
        return bulk is not None


class _Bulk:
    """The second connection; it works since the balancer has answered over it."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, offer: ClearPayloadOffer
    ) -> None:
        host = endpoint.rpartition(":")[0]
        self.works_since = math.inf
        self.socket = connect(context, f"{host}:{offer.port}", offer.name, password=offer.password)
        self._seal = AeadSeal(offer.key, FROM_PEER)
        self.send(NO_BULK)

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        buffers = [getattr(payload, "buffer", payload) for payload in payloads]
        send_frames(self.socket, [self._seal.close(message, buffers)], payloads)

    def receive(self) -> Received | None:
        while (frames := receive_frames(self.socket)) is not None:
            payloads = frames[1:]
            message = self._seal.open(frames[0].buffer, [each.buffer for each in payloads])
            if message != NO_BULK:
                return message, payloads
            self.works_since = min(self.works_since, time.monotonic())
        return None
