"""The balancer's event loop: waits for messages and deadlines, asks its jobs, sends."""

import contextlib
import os
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
import zmq

from ..job.effects import Send, group_by_peer
from ..protocol.messages import Message, PeerRejected
from ..protocol.trace_messages import StartTrace, TraceSpans
from ..transport.authentication import NOT_ALLOWED, KeyAuthenticator
from ..transport.keys import ServerKeys, new_pair
from ..transport.sockets import (
    LINGER_MS,
    NO_NAME,
    decode_routed,
    listen,
    receive_frames,
    send,
    send_together,
)
from ..transport.wire import WireError
from .tracing import Tracer

if TYPE_CHECKING:
    from ..job.jobs import PlayedJobs

# ZeroMQ's I/O threads encrypt, and share the connections among them.
MAX_IO_THREADS = 4
# `stop` is asked at least this often, in milliseconds.
MAX_WAIT_MS = 1000
# Messages that are handled before the time is looked at again: a flood does not hold that up.
MAX_PER_TURN = 1000
# Characters of a peer's name that are logged.
SHOWN_NAME = 80


def new_credentials(key: bytes, has_keys: bool) -> tuple[bytes, bytes] | None:
    """Return new credentials for a worker with this public key, empty if it has none.

    Where the balancer has keys nothing travels in the clear: None for a worker without.
    """
    if key:
        pair = new_pair("trainer")
        return pair.public, pair.secret
    return None if has_keys else (b"", os.urandom(16).hex().encode())


def serve(
    jobs: "PlayedJobs",
    address: str,
    ready: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    refused: Callable[[str], None] = lambda _: None,
    keys: ServerKeys | None = None,
    descriptor: int | None = None,
) -> None:
    """Serve jobs on an address until `stop` returns True (asked after every wait).

    Calls `ready` with the address that was bound, `refused` with a reason for each peer that is
    rejected, and for each message that its peer may not send. With keys only peers on the
    allow-list may connect. `descriptor` is a socket that listens at the address already. Raises
    OSError if the address cannot be bound.
    """

    def count_refused(reason: str) -> None:
        jobs.refused += 1
        refused(reason)

    poller = zmq.Poller()
    with (
        zmq.Context(1 if keys is None else min(MAX_IO_THREADS, os.cpu_count() or 1)) as context,
        contextlib.closing(KeyAuthenticator(context, keys, count_refused)) as authenticator,
        listen(context, address, keys, descriptor) as socket,
    ):
        authenticator.watch(socket, poller)
        poller.register(socket, zmq.POLLIN)
        shell = _Shell(jobs, socket, poller, authenticator, keys, count_refused)
        ready(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        while not stop():
            shell.turn()
        shell.send_all(jobs.stop())
        socket.close(linger=LINGER_MS["balancer"])


class _Shell(msgspec.Struct, frozen=True):
    """Carries messages between the sockets and the jobs; `refused` counts and logs."""

    jobs: "PlayedJobs"
    socket: "zmq.Socket[bytes]"
    poller: zmq.Poller
    authenticator: KeyAuthenticator
    keys: ServerKeys | None
    refused: Callable[[str], None]
    tracer: Tracer = msgspec.field(default_factory=Tracer)

    def turn(self) -> None:
        """Wait once, for a message or the jobs' next deadline, and do what is due."""
        readable = self._wait()
        self.drop(self.authenticator.find_revoked(time.monotonic()))
        self.receive_all(is_readable=self.socket in readable)
        self.authenticator.answer_requests()
        now = time.monotonic()
        if now >= self.jobs.next_deadline():
            self.send_all(self.jobs.tick(now))
            self.tracer.turned(now, time.monotonic())
        self.send_all(self.tracer.end_if_due(now))

    def _wait(self) -> Collection[object]:
        """Wait for a message or a deadline, and return the sockets that can be read."""
        timeout_ms = 1000 * (self.jobs.next_deadline() - time.monotonic())
        if 0 < timeout_ms < 1:  # a poll cannot; what comes meanwhile is handled together
            time.sleep(timeout_ms / 1000)
        return [socket for socket, _ in self.poller.poll(int(min(max(timeout_ms, 0), MAX_WAIT_MS)))]

    def receive_all(self, is_readable: bool) -> None:
        """Hand messages that have arrived to the jobs, and send their answers.

        Whether the first has arrived is known; to ask takes as long as to receive it.
        """
        read = 0
        while is_readable and (frames := receive_frames(self.socket, waits=not read)) is not None:
            self._receive(frames)
            read += 1
            is_readable = read < MAX_PER_TURN

    def send_all(self, effects: list[Send]) -> None:
        """Send messages; report peers that cannot be reached. Who is turned away is logged."""
        for peer, messages, payloads in group_by_peer(effects):
            for message in messages:
                if isinstance(message, PeerRejected):
                    self.refused(f"{_shown(peer)}: {message.reason}")
                if self.tracer.until is not None:
                    self.tracer.sent(peer, message, time.monotonic())
            try:
                send_together(self.socket, messages, payloads, to=peer)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self.authenticator.forget(peer)
                self.jobs.unreachable(peer, time.monotonic())

    def drop(self, peers: list[bytes]) -> None:
        """Disconnect peers whose key is not allowed any more."""
        for peer in peers:
            self.authenticator.forget(peer)
            self.jobs.unreachable(peer, time.monotonic())
            self.refused(NOT_ALLOWED)
            self._tell_reason(peer, NOT_ALLOWED)

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Handle one message; its peer is told why it may not send it, if so."""
        peer, key, content = decode_routed(frames, self.keys)
        if isinstance(content, WireError):
            reason = str(content)
        else:
            reasons = (self._handle(peer, key, *received) for received in content)
            reason = next(filter(None, reasons), "")
        if reason:
            self.refused(f"{_shown(peer)}: {reason}")
            self._tell_reason(peer, reason)

    def _handle(self, peer: bytes, key: bytes, message: Message, frames: list[zmq.Frame]) -> str:
        """Hand one message to its job; return why its peer may not, "" if it may."""
        if peer.startswith(NO_NAME):
            return "a peer has no name"
        reason = self.authenticator.rejection_reason(peer, key, message)
        if reason:
            return reason
        now, tracer = time.monotonic(), self.tracer
        if isinstance(message, StartTrace | TraceSpans):
            self.send_all(tracer.take(peer, message, now))
        else:
            self.send_all(self.jobs.handle(peer, message, frames, now))
            if tracer.until is not None:
                self.send_all(tracer.received(peer, message, now))
        return ""

    def _tell_reason(self, peer: bytes, reason: str) -> None:
        """Tell a peer why a message of it is rejected, if it can be reached."""
        with contextlib.suppress(zmq.ZMQError):
            send(self.socket, PeerRejected(reason), to=peer)


def _shown(peer: bytes) -> str:
    # What comes after the last dot only the peer itself knows, see transport/naming.py.
    shown = peer.rpartition(b".")[0] or peer
    return repr(shown.decode("ascii", "backslashreplace")[:SHOWN_NAME])
