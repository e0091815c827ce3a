"""A peer's connection to the balancer, with a second one for payloads if the balancer offers it.

sealing.py describes what travels over the second connection (the clear channel), and
server/clear_payloads.py is its other end.
"""

import logging
import math
import time
from collections.abc import Sequence

import zmq

from ..protocol.messages import ClearPayloadOffer, Message
from ..protocol.wire import WireError
from .keys import PeerKeys
from .sealing import EMPTY_OFFER, FROM_PEER, AeadSeal, is_available
from .sockets import Handshakes, Received, connect, receive, receive_frames, send, send_frames

logger = logging.getLogger(__name__)

# A message under CURVE this long after the clear channel was confirmed was not merely overtaken: it
# shows that the balancer has given the channel up.
SETTLED_S = 5.0


class Link:
    """A peer's connection to the balancer; routes messages over CURVE or the clear channel.

    Not thread-safe; call `close()`.
    """

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
        self._context = context
        self._endpoint = endpoint
        # The secrets of a clear channel are accepted under CURVE only.
        self._accepts_offers = keys is not None and endpoint.startswith("tcp://") and is_available()
        self._socket = connect(context, endpoint, name, keys, monitored=Handshakes.EVENTS)
        self.handshakes = Handshakes(self._socket, keyed=keys is not None)
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)
        self._clear: _ClearChannel | None = None

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Send a message; one that cannot be sent is lost."""
        if self._clear is not None and self._clear.confirmed_at < math.inf:
            self._clear.send(message, payloads)
        else:
            send(self._socket, message, payloads)

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        while (received := receive(self._socket)) is not None:
            if isinstance(received[0], ClearPayloadOffer):
                self._apply_offer(received[0])
                continue
            if self._clear is not None and time.monotonic() > self._clear.confirmed_at + SETTLED_S:
                self.leave_clear_channel()
            return received
        try:
            return self._clear.receive() if self._clear is not None else None
        except WireError as error:
            logger.warning("payloads are sent under CURVE from now on: %s", error)
            self.leave_clear_channel()
            return None

    def leave_clear_channel(self) -> None:
        """Close the clear channel, if there is one, and tell the balancer to use CURVE."""
        if self._close_clear_channel():
            send(self._socket, EMPTY_OFFER)

    def close(self, linger_ms: int) -> None:
        """Close the sockets; messages that were sent may need `linger_ms` to leave."""
        self.handshakes.close()
        self._close_clear_channel(linger_ms)
        self._socket.close(linger=linger_ms)

    def _apply_offer(self, offer: ClearPayloadOffer) -> None:
        """Open the channel that is offered; an empty offer only closes the one there is."""
        self._close_clear_channel()
        if self._accepts_offers and offer.port:
            self._clear = _ClearChannel(self._context, self._endpoint, offer)
            self.poller.register(self._clear.socket, zmq.POLLIN)

    def _close_clear_channel(self, linger_ms: int = 0) -> bool:
        """Close the clear channel; return True if there was one."""
        channel, self._clear = self._clear, None
        if channel is not None:
            self.poller.unregister(channel.socket)
            channel.socket.close(linger=linger_ms)
        return channel is not None


class _ClearChannel:
    """The second connection; used for sending once the balancer has answered over it."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, offer: ClearPayloadOffer
    ) -> None:
        host = endpoint.rpartition(":")[0]
        self.confirmed_at = math.inf
        self.socket = connect(context, f"{host}:{offer.port}", offer.name, password=offer.password)
        self._seal = AeadSeal(offer.key, FROM_PEER)
        self.send(EMPTY_OFFER)

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        buffers = [getattr(payload, "buffer", payload) for payload in payloads]
        send_frames(self.socket, [self._seal.close(message, buffers)], payloads)

    def receive(self) -> Received | None:
        while (frames := receive_frames(self.socket)) is not None:
            payloads = frames[1:]
            message = self._seal.open(frames[0].buffer, [each.buffer for each in payloads])
            if message != EMPTY_OFFER:
                return message, payloads
            self.confirmed_at = min(self.confirmed_at, time.monotonic())
        return None
