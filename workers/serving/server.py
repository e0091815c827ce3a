"""A worker's socket where trainers pull frames, with a thread of its own.

A trainer must not wait for a decode, so requests are answered beside it. ZeroMQ sends a frame from
where it lies, and keeps it until it is sent, whatever the worker does meanwhile.

Only ranks are told the credentials that the balancer has made for this worker: a password, or under
CURVE a key pair, whose public key the worker knows. libzmq asks here (ZAP, ZeroMQ RFC 27) before it
takes in a message.
"""

import contextlib
import hmac
import threading
from dataclasses import dataclass

import zmq

from ...balancer.job.messages import PullFrames
from ...balancer.transport.authentication import ZAP_ENDPOINT
from ...balancer.transport.finding import needs_ipv6
from ...balancer.transport.keys import KeyPair, public_text
from ...balancer.transport.sockets import decode_routed, open_router, receive_frames, send
from ...balancer.transport.wire import WireError
from .frame_store import FrameStore

# A request has a number for each frame, and no frame but its header.
MAX_REQUEST_BYTES = 1 << 20
# Answers that wait for a rank that does not read; it asks again for what was dropped.
MAX_WAITING_OUT = 256


@dataclass(frozen=True, slots=True)
class FramesWay:
    """The way of a worker's frames to trainers.

    server: where they are pulled, at an address that trainers can reach; without one the balancer
    relays them, and `why` says why.
    """

    server: "PullServer | None"
    address: str = ""
    why: str = ""

    @property
    def text(self) -> str:
        """The way in words."""
        relayed = f"inline: {self.why}"
        return relayed if self.server is None else f"direct: ranks pull from {self.address}"

    @property
    def key(self) -> bytes:
        """The worker's public key, empty where nothing is encrypted."""
        return b"" if self.server is None else self.server.key

    def close(self) -> None:
        """Serve nothing any more."""
        if self.server is not None:
            self.server.close()


class PullServer:
    """Serves what a store has at an address; `close()` it."""

    def __init__(self, address: str, keys: KeyPair | None, store: FrameStore) -> None:
        """Listen; with keys everything is encrypted. OSError if the address cannot be bound."""
        self.key = keys.public if keys is not None else b""
        self.store = store
        self._public = self._secret = b""  # none is right before the balancer has made them
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests = self._context.socket(zmq.REP)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.bind(ZAP_ENDPOINT)
        self._socket = open_router(self._context, keys, passwords=keys is None)
        self._socket.setsockopt(zmq.IPV6, needs_ipv6(address))
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, MAX_WAITING_OUT)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(
                f"cannot serve frames at {address}: {error}: give counterpoise worker --serve "
                "with another address, or --serve none"
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        threading.Thread(target=self._serve, daemon=True, name="pulls").start()

    def admit(self, public: bytes, secret: bytes) -> None:
        """Admit ranks with these credentials, and no others any more."""
        self._public, self._secret = public, secret

    def close(self) -> None:
        """Serve nothing any more."""
        self._context.term()  # the thread's wait ends, and it closes its sockets

    def _serve(self) -> None:
        """Answer trainers until the context ends."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._requests, zmq.POLLIN)
        ending = contextlib.suppress(zmq.ContextTerminated)
        # Closed whatever happens: the context could not end.
        with self._socket, self._requests, ending:
            while True:
                readable = dict(poller.poll())
                if self._requests in readable:
                    self._authenticate()
                while (frames := receive_frames(self._socket)) is not None:
                    self._answer(frames)

    def _authenticate(self) -> None:
        version, number, _, _, _, mechanism, *credentials = self._requests.recv_multipart()
        is_rank = self._knows(mechanism, credentials)
        status, text = (b"200", b"OK") if is_rank else (b"400", b"not a rank of this job")
        self._requests.send_multipart([version, number, status, text, b"rank", b""])

    def _knows(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        """Return whether these are the credentials that ranks have been told."""
        if mechanism == b"CURVE" and self._public and len(credentials) == 1:
            return hmac.compare_digest(public_text(credentials[0]), self._public)
        if mechanism == b"PLAIN" and self._secret and len(credentials) == 2:
            return hmac.compare_digest(credentials[1], self._secret)
        return False

    def _answer(self, asked: list[zmq.Frame]) -> None:
        """Answer a request; what is none is dropped, and so are answers to ended ranks."""
        peer, _, content = decode_routed(asked)
        for request, _ in [] if isinstance(content, WireError) else content:
            if not isinstance(request, PullFrames):
                return
            message, frames = self.store.answer(request)
            try:
                send(self._socket, message, frames, to=peer)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
