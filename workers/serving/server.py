"""A worker's socket where ranks pull payloads, with a thread of its own.

A rank must not wait for a decode, so requests are answered beside it. ZeroMQ sends a payload from
where it lies, and keeps it until it is sent, whatever the worker does meanwhile.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq

from ...balancer.protocol.payload_messages import PulledPayloads, PullPayloads, ServePayloads
from ...balancer.transport.authentication import most_connections
from ...balancer.transport.finding import needs_ipv6
from ...balancer.transport.keys import KeyPair
from ...balancer.transport.sockets import decode_from, open_router, receive_frames, send
from ...balancer.transport.wire import WireError
from .connections import HANDSHAKE_MS, PullConnections


class PayloadStore:
    """The payloads of one worker process, by serial number; safe to share between two threads.

    The counterpart, in the rank, is loader/connect/pull_tracker.py. A payload is announced to the
    balancer by its serial number, which is never used again, and kept until the balancer frees it.
    What a rank was sent is its own: it may arrive after the payload was freed. So no message's
    delay, loss or repetition can give a rank other bytes than were announced: it gets these, or
    none.
    """

    request = PullPayloads

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes` is what this host has for them, whatever the balancer allows."""
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._token = 0
        self._most_bytes = 0
        self._last = 0
        self._payloads: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._payloads)

    def begin(self, token: int, most_bytes: int) -> None:
        """Answer ranks that know this token from now on; payloads of another are forgotten."""
        with self._lock:
            if token != self._token:
                self._forget_all()
            self._token, self._most_bytes = token, most_bytes

    def end(self) -> None:
        """Keep no further payload; those that are here stay until they are freed."""
        with self._lock:
            self._most_bytes = 0

    def keep(self, payload: Any) -> int:
        """Keep a payload, in one buffer, and return its serial; 0 where there is no room."""
        nbytes = memoryview(payload).nbytes
        with self._lock:
            if not 0 < nbytes <= min(self._most_bytes, self.limit_bytes) - self.nbytes:
                return 0
            self._last += 1
            self._payloads[self._last] = payload
            self.nbytes += nbytes
            return self._last

    def answer(self, request: PullPayloads) -> tuple[PulledPayloads, list[Any]]:
        """Return the answer to a rank, and a payload for each serial in it."""
        with self._lock:
            known = self._payloads if request.token == self._token else {}
            found = [serial for serial in dict.fromkeys(request.serials) if serial in known]
            payloads = [known[serial] for serial in found]
        return PulledPayloads(request.number, tuple(found)), payloads

    def free(self, serials: Sequence[int]) -> None:
        """Forget payloads that nobody needs any more; unknown and repeated serials are ignored."""
        with self._lock:
            for serial in serials:
                payload = self._payloads.pop(serial, None)
                if payload is not None:
                    self.nbytes -= memoryview(payload).nbytes

    def free_all(self) -> None:
        """Forget all payloads: the balancer has forgotten this worker, or its job is over."""
        with self._lock:
            self._forget_all()

    def _forget_all(self) -> None:
        self._payloads.clear()
        self.nbytes = 0


# A request has a number for each payload, and no frame but its header.
MAX_REQUEST_BYTES = 1 << 20
# Answers that wait for a rank that does not read; it asks again for what was dropped.
MAX_WAITING_OUT = 256
IDLE_MS = 1000


class PullServer:
    """Serves what a store has at an address, which answers requests of its kind; `close()` it."""

    def __init__(
        self, address: str, limit_bytes: int, keys: KeyPair | None, store: Any = None
    ) -> None:
        """Listen; with keys everything is encrypted. OSError if the address cannot be bound."""
        self.key = keys.public if keys is not None else b""
        self.store: Any = PayloadStore(limit_bytes) if store is None else store
        self._instruction: ServePayloads | None = None
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
                f"cannot serve payloads at {address}: {error}: give counterpoise worker --serve "
                "with another address, or --serve none"
            ) from error
        self.endpoint = self._connections.endpoint
        threading.Thread(target=self._serve, args=(socket,), daemon=True, name="pulls").start()

    def begin(self, instruction: ServePayloads) -> None:
        """Serve payloads as the balancer says; nothing if it has said so before."""
        if instruction != self._instruction:
            self._instruction = instruction
            self.admit(instruction.public, instruction.secret)
            self.store.begin(instruction.token, instruction.most_bytes)

    def admit(self, public: bytes, secret: bytes) -> None:
        """Let in whoever has these credentials, and nobody else any more."""
        self._connections.public, self._connections.secret = public, secret

    def end(self) -> bool:
        """Keep no further payload; return whether that is new."""
        was_serving, self._instruction = self._instruction is not None, None
        self.store.end()
        return was_serving

    def close(self) -> None:
        """Serve nothing any more."""
        self._context.term()  # the thread's wait ends, and it closes its sockets

    def _serve(self, socket: "zmq.Socket[bytes]") -> None:
        """Answer ranks until the context ends."""
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

    def _answer(self, socket: "zmq.Socket[bytes]", frames: list[zmq.Frame]) -> None:
        """Answer a request; what is none is dropped, and so is the answer to who has gone."""
        peer, _, content = decode_from(frames)
        for request, _ in [] if isinstance(content, WireError) else content:
            if not isinstance(request, self.store.request):
                return
            message, payloads = self.store.answer(request)
            try:
                send(socket, message, payloads, to=peer)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
