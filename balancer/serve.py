"""The balancer's shell: wait for a message or the time, ask the coordinator, send what it says."""

import os
import platform
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from .. import __version__
from .coordinator import Coordinator
from .gate import NOT_ALLOWED, Gate, open_gate
from .keys import ServerKeys
from .memory import Rest, keep_freed_memory
from .messages import Bye, Refused
from .peers import Send
from .sockets import listen, receive_from, send
from .wire import WireError

# The last words may still be on their way when the balancer is stopped.
LINGER_MS = 500
# Encryption is done by ZeroMQ's threads, which share the connections among them.
MAX_IO_THREADS = 4
SOFTWARE = f"python {platform.python_version()}, counterpoise {__version__}"


def serve(
    coordinator: Coordinator,
    address: str,
    ready: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    refused: Callable[[str], None] = lambda _: None,
    keys: ServerKeys | None = None,
) -> None:
    """Serve a coordinator on an address until `stop` says so (asked after every wait).

    `ready` is told the address that was bound, `refused` of each message that had to be dropped and
    of each peer that was turned away. With keys only those on the allow-list may come in. Raises
    OSError if the address cannot be bound.
    """
    keep_freed_memory()
    poller = zmq.Poller()
    books = coordinator.books
    books.software = SOFTWARE

    def refuse(reason: str) -> None:
        books.refused += 1
        refused(reason)

    with (
        zmq.Context(_io_threads(keys)) as context,
        open_gate(context, keys, refuse) as gate,
        listen(context, address, keys) as socket,
    ):
        gate.watch(socket, poller)
        poller.register(socket, zmq.POLLIN)
        ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        shell = _Shell(coordinator, socket, gate, keys, refuse)
        while not stop():
            books.wall_ahead_s = time.time() - time.monotonic()
            timeout_ms = 1000 * (coordinator.next_deadline() - time.monotonic())
            poller.poll(int(min(max(timeout_ms, 0), 1000)))
            shell.drop(gate.attend(time.monotonic()))
            shell.receive_all()
            shell.send_all(coordinator.tick(time.monotonic()))
            shell.rest.look(time.monotonic())
        shell.send_all(coordinator.stop())
        socket.close(linger=LINGER_MS)


def _io_threads(keys: ServerKeys | None) -> int:
    return 1 if keys is None else min(MAX_IO_THREADS, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class _Shell:
    """What happens between a socket and a coordinator."""

    coordinator: Coordinator
    socket: "zmq.Socket[bytes]"
    gate: Gate
    keys: ServerKeys | None
    refused: Callable[[str], None]
    rest: Rest = field(default_factory=Rest)

    def receive_all(self) -> None:
        """Hand over every message that has come, and send what the coordinator says to it."""
        while (received := receive_from(self.socket, self.keys)) is not None:
            peer, key, content = received
            if isinstance(content, WireError):
                self._refuse(peer, str(content))
                continue
            message, frames = content
            objection = self.gate.objection(peer, key, message)
            if objection:
                self._refuse(peer, objection)
                continue
            size = sum(len(frame) for frame in frames)
            now = time.monotonic()
            if frames:
                self.rest.worked(now)
            self.send_all(self.coordinator.handle(peer, message, frames, size, now))

    def send_all(self, effects: list[Send]) -> None:
        """Send effects; the coordinator hears what cannot be sent, and its answer is sent too."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            try:
                send(self.socket, effect.message, effect.payloads, to=effect.peer)
                if effect.payloads:
                    self.rest.worked(time.monotonic())
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self.gate.forget(effect.peer)
                now = time.monotonic()
                waiting.extend(self.coordinator.gone(effect.peer, effect.message, now))

    def drop(self, peers: list[bytes]) -> None:
        """Let go of peers whose key is not allowed any more."""
        for peer in peers:
            self.send_all(self.coordinator.gone(peer, Bye(), time.monotonic()))
            self._refuse(peer, NOT_ALLOWED)

    def _refuse(self, peer: bytes, reason: str) -> None:
        self.refused(reason)
        self.send_all([Send(peer, Refused(reason))])
