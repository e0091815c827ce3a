"""The balancer's second socket: messages with payloads in the clear; see transport/sealing.py.

A peer that talks under CURVE is offered a connection here. Once it shows that the connection works,
everything to it and from it goes there, so that nothing overtakes anything. When anything is wrong
with it (a message was changed on its way, the peer is not connected), it is given up, the talk goes
on under CURVE, and after a while another one is offered.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from ..coordinator.effects import Send
from ..protocol.messages import ClearPayloadOffer, GetStatus, Message, WorkerHeartbeat
from ..protocol.wire import WireError
from ..transport.authentication import KeyAuthenticator
from ..transport.sealing import FROM_BALANCER, NO_BULK, AeadSeal, is_available, new_bulk
from ..transport.sockets import Received, listen, receive_frames, send_frames

# A peer whose connection was given up is offered another one after so long.
AGAIN_S = 30.0
# Connections at a time; whose is given up for another one talks under CURVE.
MAX_CONNECTIONS = 1 << 14
# Those who say these have no payloads.
WITHOUT = (WorkerHeartbeat, GetStatus, ClearPayloadOffer)


@dataclass(slots=True)
class _Connection:
    """A peer's bulk connection; `works` since the peer has said so over it."""

    peer: bytes
    user: bytes
    name: bytes
    seal: AeadSeal
    works: bool = False


class ClearPayloadServer:
    """The bulk connections of all peers."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        gate: KeyAuthenticator,
        refused: Callable[[str], None],
    ) -> None:
        """Listen on an address; OSError if it cannot be bound, ValueError without cryptography.

        The gate must have been given keys; `refused` is told of each message that is dropped.
        """
        if not is_available():
            raise ValueError(
                "payloads in the clear need the package cryptography: "
                "pip install 'counterpoise[plain-payloads]'"
            )
        self.socket = listen(context, address, passwords=True)
        endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])
        self._passwords = gate.passwords
        self._refused = refused
        self._peers: dict[bytes, _Connection] = {}
        self._names: dict[bytes, _Connection] = {}
        self._offered: dict[bytes, float] = {}

    def offer(
        self, peer: bytes, user: bytes, message: Message, now: float
    ) -> ClearPayloadOffer | None:
        """Return what to offer a peer that has said something under CURVE, if anything."""
        lately = now - self._offered.get(peer, -math.inf) < AGAIN_S
        if lately or peer in self._peers or isinstance(message, WITHOUT):
            return None
        bulk = new_bulk(self.port)
        connection = _Connection(peer, user, bulk.name, AeadSeal(bulk.key, FROM_BALANCER))
        self._peers[peer] = self._names[bulk.name] = connection
        self._passwords[bulk.name] = bulk.password
        self._offered[peer] = now
        if len(self._offered) > MAX_CONNECTIONS:
            oldest = next(iter(self._offered))
            del self._offered[oldest]
            self.give_up(oldest)
        return bulk

    def give_up(self, peer: bytes) -> bool:
        """Forget a peer's connection; whether it had one."""
        connection = self._peers.pop(peer, None)
        if connection is not None:
            del self._names[connection.name], self._passwords[connection.name]
        return connection is not None

    def forget(self, peer: bytes) -> None:
        """A peer has gone."""
        self.give_up(peer)
        self._offered.pop(peer, None)

    def works(self, peer: bytes) -> bool:
        """Whether messages to a peer go this way."""
        connection = self._peers.get(peer)
        return connection is not None and connection.works

    def send(self, effect: Send) -> bool:
        """Send a message to a peer whose connection works; False if it does not any more."""
        connection = self._peers[effect.peer]
        buffers = [getattr(payload, "buffer", payload) for payload in effect.payloads]
        front = connection.seal.close(effect.message, buffers)
        try:
            send_frames(self.socket, [connection.name, front], effect.payloads)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def receive(self) -> tuple[bytes, bytes, Received | WireError] | None:
        """Return (peer, its key, message) or what is wrong with the message; None if there is none.

        What says only that a connection works is answered here.
        """
        while (frames := receive_frames(self.socket)) is not None:
            connection = self._names.get(frames[0].bytes)
            if connection is None or len(frames) < 2:
                self._refused("a message over a connection that was given up")
                continue
            payloads = frames[2:]
            try:
                message = connection.seal.open(
                    frames[1].buffer, [payload.buffer for payload in payloads]
                )
            except WireError as error:
                return connection.peer, connection.user, error
            if message != NO_BULK:
                return connection.peer, connection.user, (message, payloads)
            connection.works = True
            if not self.send(Send(connection.peer, NO_BULK)):
                self.give_up(connection.peer)
        return None

    def close(self, linger_ms: int) -> None:
        """Let go of the socket; the last words may still be on their way."""
        self.socket.close(linger=linger_ms)
