"""The balancer's second socket, for messages with unencrypted payloads; see transport/sealing.py.

A peer that talks under CURVE is offered a channel here. Once it confirms that the channel works,
all messages in both directions use it, so that none overtakes another. If anything goes wrong (a
message was changed on its way, the peer is not connected) the channel is given up, messages travel
under CURVE again, and after a while another channel is offered.
"""

import math
from collections.abc import Callable

import msgspec
import zmq

from ..coordinator.effects import Send
from ..protocol.messages import ClearPayloadOffer, GetStatus, Message, WorkerHeartbeat
from ..protocol.wire import WireError
from ..transport.authentication import KeyAuthenticator
from ..transport.sealing import EMPTY_OFFER, FROM_BALANCER, AeadSeal, is_available, new_offer
from ..transport.sockets import Received, listen, receive_frames, send_frames

# Seconds after an offer before the same peer gets another one.
OFFER_AGAIN_S = 30.0
# Channels at a time; the oldest is given up for a new one, and its peer talks under CURVE.
MAX_CHANNELS = 1 << 14
# Senders of these kinds have no payloads: a worker's heartbeat thread, the doctor.
NO_PAYLOADS = (WorkerHeartbeat, GetStatus, ClearPayloadOffer)


class _Channel(msgspec.Struct):
    """A peer's clear channel; confirmed once the peer has sent an empty offer over it."""

    peer: bytes
    key: bytes
    name: bytes
    seal: AeadSeal
    confirmed: bool = False


class ClearPayloadServer:
    """The clear channels of all peers."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        authenticator: KeyAuthenticator,
        rejected: Callable[[str], None],
    ) -> None:
        """Listen on an address; OSError if it cannot be bound, ValueError without cryptography.

        The authenticator must have keys; `rejected` is called for each message that is dropped.
        """
        if not is_available():
            raise ValueError(
                "payloads in the clear need the package cryptography: "
                "pip install 'counterpoise[plain-payloads]'"
            )
        self.socket = listen(context, address, passwords=True)
        endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])
        self._passwords = authenticator.passwords
        self._rejected = rejected
        self._by_peer: dict[bytes, _Channel] = {}
        self._by_name: dict[bytes, _Channel] = {}
        self._offered_at: dict[bytes, float] = {}

    def offer(
        self, peer: bytes, key: bytes, message: Message, now: float
    ) -> ClearPayloadOffer | None:
        """Return an offer for a peer that has sent a message under CURVE; None if it needs none."""
        recently = now - self._offered_at.get(peer, -math.inf) < OFFER_AGAIN_S
        if recently or peer in self._by_peer or isinstance(message, NO_PAYLOADS):
            return None
        offer = new_offer(self.port)
        channel = _Channel(peer, key, offer.name, AeadSeal(offer.key, FROM_BALANCER))
        self._by_peer[peer] = self._by_name[offer.name] = channel
        self._passwords[offer.name] = offer.password
        self._offered_at[peer] = now
        if len(self._offered_at) > MAX_CHANNELS:
            oldest = next(iter(self._offered_at))
            del self._offered_at[oldest]
            self.give_up(oldest)
        return offer

    def give_up(self, peer: bytes) -> bool:
        """Forget a peer's channel; return True if it had one."""
        channel = self._by_peer.pop(peer, None)
        if channel is not None:
            del self._by_name[channel.name], self._passwords[channel.name]
        return channel is not None

    def forget(self, peer: bytes) -> None:
        """Forget a peer that has disconnected."""
        self.give_up(peer)
        self._offered_at.pop(peer, None)

    def is_used_for(self, peer: bytes) -> bool:
        """Return True if messages to a peer go over its clear channel."""
        channel = self._by_peer.get(peer)
        return channel is not None and channel.confirmed

    def send(self, effect: Send) -> bool:
        """Send a message to a peer whose channel is confirmed; return False if it is broken."""
        channel = self._by_peer[effect.peer]
        buffers = [getattr(payload, "buffer", payload) for payload in effect.payloads]
        front = channel.seal.close(effect.message, buffers)
        try:
            send_frames(self.socket, [channel.name, front], effect.payloads)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def receive(self) -> tuple[bytes, bytes, Received | WireError] | None:
        """Return (peer, its key, message or its error), or None if there is none.

        An empty offer, by which a peer confirms its channel, is answered here.
        """
        while (frames := receive_frames(self.socket)) is not None:
            channel = self._by_name.get(frames[0].bytes)
            if channel is None or len(frames) < 2:
                self._rejected("a message over a clear channel that was given up")
                continue
            payloads = frames[2:]
            try:
                message = channel.seal.open(
                    frames[1].buffer, [payload.buffer for payload in payloads]
                )
            except WireError as error:
                return channel.peer, channel.key, error
            if message != EMPTY_OFFER:
                return channel.peer, channel.key, (message, payloads)
            channel.confirmed = True
            if not self.send(Send(channel.peer, EMPTY_OFFER)):
                self.give_up(channel.peer)
        return None

    def close(self, linger_ms: int) -> None:
        """Close the socket; messages that were sent may need `linger_ms` to leave."""
        self.socket.close(linger=linger_ms)
