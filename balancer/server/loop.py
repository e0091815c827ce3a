"""The balancer's shell: wait for a message or the time, ask the coordinator, send what it says."""

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import zmq

from ..coordinator.effects import Send
from ..coordinator.machine import Coordinator
from ..protocol.messages import Bye, ClearPayloadOffer, Message, PeerRejected
from ..protocol.software_version import VERSION
from ..protocol.wire import WireError
from ..transport.authentication import NOT_ALLOWED, KeyAuthenticator, open_gate
from ..transport.keys import ServerKeys
from ..transport.sealing import NO_BULK
from ..transport.sockets import listen, receive_from, send
from .clear_payloads import ClearPayloadServer
from .malloc import IdleTrimmer, keep_freed_memory

# The last words may still be on their way when the balancer is stopped.
LINGER_MS = 500
# Encryption is done by ZeroMQ's threads, which share the connections among them.
MAX_IO_THREADS = 4
SOFTWARE = f"python {platform.python_version()}, counterpoise {VERSION}"


def serve(
    coordinator: Coordinator,
    address: str,
    ready: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    refused: Callable[[str], None] = lambda _: None,
    keys: ServerKeys | None = None,
    bulk_address: str = "",
) -> None:
    """Serve a coordinator on an address until `stop` says so (asked after every wait).

    `ready` is told the address that was bound, `refused` of each message that had to be dropped and
    of each peer that was turned away. With keys only those on the allow-list may come in; with keys
    and a `bulk_address` payloads travel there, in the clear (sealing.py). Raises OSError if an
    address cannot be bound.
    """
    keep_freed_memory()
    poller = zmq.Poller()
    diagnostics = coordinator.state.diagnostics
    diagnostics.software = SOFTWARE

    def refuse(reason: str) -> None:
        diagnostics.refused += 1
        refused(reason)

    with (
        zmq.Context(_io_threads(keys)) as context,
        open_gate(context, keys, refuse) as gate,
        listen(context, address, keys) as socket,
        _open_bulk(context, bulk_address, gate, refuse) as bulk,
    ):
        for each in (socket, bulk.socket) if bulk is not None else (socket,):
            gate.watch(each, poller)
            poller.register(each, zmq.POLLIN)
        ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        shell = _Shell(coordinator, socket, gate, keys, refuse, bulk)
        while not stop():
            diagnostics.wall_ahead_s = time.time() - time.monotonic()
            timeout_ms = 1000 * (coordinator.next_deadline() - time.monotonic())
            poller.poll(int(min(max(timeout_ms, 0), 1000)))
            shell.drop(gate.attend(time.monotonic()))
            shell.receive_all()
            shell.send_all(coordinator.tick(time.monotonic()))
            shell.rest.look(time.monotonic())
        shell.send_all(coordinator.stop())
        socket.close(linger=LINGER_MS)


@contextmanager
def _open_bulk(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    gate: KeyAuthenticator,
    refused: Callable[[str], None],
) -> Iterator[ClearPayloadServer | None]:
    """Give what serves payloads in the clear, if it is wanted, and close it."""
    bulk = ClearPayloadServer(context, address, gate, refused) if address else None
    try:
        yield bulk
    finally:
        if bulk is not None:
            bulk.close(LINGER_MS)


def _io_threads(keys: ServerKeys | None) -> int:
    return 1 if keys is None else min(MAX_IO_THREADS, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class _Shell:
    """What happens between a socket and a coordinator."""

    coordinator: Coordinator
    socket: "zmq.Socket[bytes]"
    gate: KeyAuthenticator
    keys: ServerKeys | None
    refused: Callable[[str], None]
    bulk: ClearPayloadServer | None
    rest: IdleTrimmer = field(default_factory=IdleTrimmer)

    def receive_all(self) -> None:
        """Hand over every message that has come, and send what the coordinator says to it."""
        while (received := receive_from(self.socket, self.keys)) is not None:
            peer, key, content = received
            if isinstance(content, WireError):
                self._refuse(peer, str(content))
            elif isinstance(content[0], ClearPayloadOffer):
                self._end_bulk(peer)
            elif self._take(peer, key, *content) and self.bulk is not None:
                offer = self.bulk.offer(peer, key, content[0], time.monotonic())
                self.send_all([Send(peer, offer)] if offer is not None else [])
        while self.bulk is not None and (received := self.bulk.receive()) is not None:
            peer, key, content = received
            if isinstance(content, WireError):
                self.refused(str(content))
                self._end_bulk(peer)
            else:
                self._take(peer, key, *content)

    def send_all(self, effects: list[Send]) -> None:
        """Send effects; the coordinator hears what cannot be sent, and its answer is sent too."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            try:
                self._send(effect)
                if effect.payloads:
                    self.rest.worked(time.monotonic())
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self._forget(effect.peer)
                now = time.monotonic()
                waiting.extend(self.coordinator.unreachable(effect.peer, effect.message, now))

    def drop(self, peers: list[bytes]) -> None:
        """Let go of peers whose key is not allowed any more."""
        for peer in peers:
            self._forget(peer)
            self.send_all(self.coordinator.unreachable(peer, Bye(), time.monotonic()))
            self._refuse(peer, NOT_ALLOWED)

    def _take(self, peer: bytes, key: bytes, message: Message, frames: list[zmq.Frame]) -> bool:
        """Hand over one message; whether its peer may say it."""
        objection = self.gate.objection(peer, key, message)
        if objection:
            self._refuse(peer, objection)
            return False
        size = sum(len(frame) for frame in frames)
        now = time.monotonic()
        if frames:
            self.rest.worked(now)
        self.send_all(self.coordinator.handle(peer, message, frames, size, now))
        return True

    def _send(self, effect: Send) -> None:
        if self.bulk is not None and self.bulk.works(effect.peer):
            if self.bulk.send(effect):
                return
            self._end_bulk(effect.peer)
        send(self.socket, effect.message, effect.payloads, to=effect.peer)

    def _end_bulk(self, peer: bytes) -> None:
        """Go on with a peer under CURVE, and tell it so."""
        if self.bulk is not None and self.bulk.give_up(peer):
            self.send_all([Send(peer, NO_BULK)])

    def _forget(self, peer: bytes) -> None:
        self.gate.forget(peer)
        if self.bulk is not None:
            self.bulk.forget(peer)

    def _refuse(self, peer: bytes, reason: str) -> None:
        self.refused(reason)
        self.send_all([Send(peer, PeerRejected(reason))])
