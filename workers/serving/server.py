"""A worker's socket where trainers pull frames, with a thread of its own.

A trainer must not wait for a decode, so requests are answered beside it. ZeroMQ sends a frame from
where it lies, and keeps it until it is sent, whatever the worker does meanwhile.
"""

import contextlib
import threading
import time
from dataclasses import dataclass

import zmq

from ...balancer.job.messages import PullFrames
from ...balancer.transport.authentication import most_connections
from ...balancer.transport.finding import needs_ipv6
from ...balancer.transport.keys import KeyPair
from ...balancer.transport.sockets import decode_from, open_router, receive_frames, send
from ...balancer.transport.wire import WireError
from .connections import HANDSHAKE_MS, PullConnections
from .frame_store import FrameStore

# A request has a number for each frame, and no frame but its header.
MAX_REQUEST_BYTES = 1 << 20
# Answers that wait for a rank that does not read; it asks again for what was dropped.
MAX_WAITING_OUT = 256
IDLE_MS = 1000


@dataclass(frozen=True, slots=True)
class FramesWay:
    """How a worker's frames reach trainers, and why, as text.

    server: where they are pulled, None: the balancer relays them. address: as trainers are told it.
    """

    server: "PullServer | None"
    text: str
    address: str = ""

    @property
    def key(self) -> bytes:
        """The worker's public key, empty where nothing is encrypted."""
        return b"" if self.server is None else self.server.key

    def close(self) -> None:
        """Serve nothing any more."""
        if self.server is not None:
            self.server.close()


def pulled_from(server: "PullServer", address: str) -> FramesWay:
    """Return the way of frames that trainers pull."""
    return FramesWay(server, f"direct: ranks pull from {address}", address)


def relayed(why: str) -> FramesWay:
    """Return the way of frames through the balancer."""
    return FramesWay(None, f"inline: {why}")


class PullServer:
    """Serves what a store has at an address; `close()` it."""

    def __init__(self, address: str, keys: KeyPair | None, store: FrameStore) -> None:
        """Listen; with keys everything is encrypted. OSError if the address cannot be bound."""
        self.key = keys.public if keys is not None else b""
        self.store = store
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = open_router(self._context, keys, passwords=keys is None)
        socket.setsockopt(zmq.IPV6, needs_ipv6(address))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.SNDHWM, MAX_WAITING_OUT)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        try:
            self._connections = PullConnections(self._context, socket, address, most_connections())
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(
                f"cannot serve frames at {address}: {error}: give counterpoise worker --serve "
                "with another address, or --serve none"
            ) from error
        self.endpoint = self._connections.endpoint
        threading.Thread(target=self._serve, args=(socket,), daemon=True, name="pulls").start()

    def admit(self, public: bytes, secret: bytes) -> None:
        """Let in whoever has these credentials, and nobody else any more."""
        self._connections.public, self._connections.secret = public, secret

    def close(self) -> None:
        """Serve nothing any more."""
        self._context.term()  # the thread's wait ends, and it closes its sockets

    def _serve(self, socket: "zmq.Socket[bytes]") -> None:
        """Answer trainers until the context ends."""
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        ending = contextlib.suppress(zmq.ContextTerminated)
        # Closed whatever happens: the context could not end.
        with socket, contextlib.closing(self._connections), ending:
            while True:
                now = time.monotonic()
                closed_s = self._connections.watch(poller, now) - now
                poller.poll(min(IDLE_MS, int(1000 * closed_s) + 1) if closed_s > 0 else IDLE_MS)
                self._connections.turn(time.monotonic())
                while (frames := receive_frames(socket)) is not None:
                    self._answer(socket, frames)

    def _answer(self, socket: "zmq.Socket[bytes]", asked: list[zmq.Frame]) -> None:
        """Answer a request; what is none is dropped, and so is the answer to who has gone."""
        peer, _, content = decode_from(asked)
        for request, _ in [] if isinstance(content, WireError) else content:
            if not isinstance(request, PullFrames):
                return
            message, frames = self.store.answer(request)
            try:
                send(socket, message, frames, to=peer)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
