"""The balancer's event loop: waits for messages and deadlines, asks its jobs, sends."""

import contextlib
import ctypes
import fcntl
import functools
import os
import socket as sockets
import sys
import termios
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import zmq

from ..job.effects import Send, group_by_peer
from ..parties.messages import JoinJob
from ..protocol.messages import Message, PeerRejected
from ..protocol.trace_messages import StartTrace, TraceSpans
from ..transport.authentication import (
    NOT_ALLOWED,
    OPENED,
    KeyAuthenticator,
    most_connections,
)
from ..transport.keys import ServerKeys, new_pair
from ..transport.sockets import (
    LINGER_MS,
    NO_NAME,
    decode_from,
    listen,
    receive_frames,
    send,
    send_together,
    serial_of,
)
from ..transport.wire import WireError
from .malloc import IdleTrimmer, keep_freed_memory
from .tracing import Tracer

if TYPE_CHECKING:
    from ..job.jobs import PlayedJobs

# ZeroMQ's I/O threads encrypt, and share the connections among them.
MAX_IO_THREADS = 4
# `stop` is asked at least this often, in milliseconds.
MAX_WAIT_MS = 1000
# Messages that are handled before the time is looked at again: a flood does not hold that up.
MAX_PER_TURN = 1000
# A connection is ended after so many messages that its peer may not send: whoever sends others for
# ever is not read for ever. So many peers' faults are remembered.
MOST_FAULTS, MAX_FAULTY = 16, 4096
# A header of more than this is noted as payloads are: its memory is to be given back.
LARGE_BYTES = 1 << 16
# More ranks' hellos than these are kept only of ranks that are here.
MAX_HELLOS = 4096
# Characters of a peer's name that are logged.
SHOWN_NAME = 80
# A sockaddr of the family AF_UNSPEC.
NO_ADDRESS = bytes(16)
_libc = ctypes.CDLL(None, use_errno=True)


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
    keep_freed_memory()
    listening = functools.partial(listen, address=address, keys=keys, descriptor=descriptor)
    with open_shell(jobs, listening, keys, refused) as shell:
        ready(shell.socket.getsockopt_string(zmq.LAST_ENDPOINT))
        # What libzmq frees of a message that breaks off is never seen here.
        shell.trimmer.note_payload(time.monotonic())
        while not stop():
            shell.turn()
        shell.send_all(jobs.stop())
        shell.socket.close(linger=LINGER_MS["balancer"])


@contextmanager
def open_shell(
    jobs: "PlayedJobs",
    listening: Callable[["zmq.Context[zmq.Socket[bytes]]"], "zmq.Socket[bytes]"],
    keys: ServerKeys | None,
    log: Callable[[str], None],
) -> Iterator["_Shell"]:
    """Give a shell with its sockets and poller, and close them at the end.

    The arguments are those of `serve`, but `listening`, which opens the socket.
    """

    def refused(reason: str) -> None:
        jobs.refused += 1
        log(reason)

    poller = zmq.Poller()
    with (
        zmq.Context(1 if keys is None else min(MAX_IO_THREADS, os.cpu_count() or 1)) as context,
        contextlib.closing(KeyAuthenticator(context, keys, refused)) as authenticator,
        listening(context) as socket,
    ):
        authenticator.watch(socket, poller)
        poller.register(socket, zmq.POLLIN)
        connections = Connections(socket)
        yield _Shell(jobs, socket, poller, authenticator, keys, refused, connections)


class Connections:
    """The connections of a ROUTER: of each descriptor the newest that has been heard of.

    A ROUTER itself cannot close one. libzmq tells the descriptor of a message's connection, which
    is reset here (connect(2) to no address): the other side is told at once, and what it has sent
    and libzmq has not read is dropped by the kernel, where a shutdown would have megabytes of it
    read first. For libzmq it is as if the peer had reset it. But the connection may have ended
    since the message was received, and its number may belong to another by now. So it must be a
    connection to this balancer's port, from the message's host, and none that was let in later may
    have been heard of under that number: the authenticator numbers those that it lets in. What
    cannot be excluded is a peer that has just connected and has sent nothing yet: it connects
    again.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """`socket` is bound; connections of one that does not listen on tcp are never closed."""
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp:") else 0
        self._newest: dict[int, int] = {}
        self._silent: dict[int, None] = {}
        self._most_silent = most_connections()

    def end_silent(self, events: list[tuple[int, int]]) -> None:
        """Take note of connections that have come and gone; end the oldest of too many strangers'.

        These have said nothing yet. Who has a key says something at once, and stays.
        """
        for event, number in events:
            self._silent.pop(number, None)
            if event == OPENED:
                self._silent[number] = None
        events.clear()
        while len(self._silent) > self._most_silent:
            number = next(iter(self._silent))
            del self._silent[number]
            with contextlib.suppress(OSError):  # it has ended; no copy of it: files may be short
                connection = sockets.socket(fileno=number)
                try:
                    if connection.getsockname()[1] == self._port:
                        connection.shutdown(sockets.SHUT_RDWR)
                finally:
                    connection.detach()

    def note(self, frame: zmq.Frame) -> None:
        """Note over which connection a message came; `frame` has its peer's name."""
        if self._port:
            with contextlib.suppress(zmq.ZMQError):
                number, serial = int(frame.get(zmq.SRCFD)), serial_of(frame)
                self._silent.pop(number, None)
                self._newest[number] = max(serial, self._newest.get(number, 0))

    def reset(self, frame: zmq.Frame) -> None:
        """Reset the connection over which a message came, unless it is somebody else's by now."""
        with self._found(frame) as connection:
            if connection is not None:
                _libc.connect(connection.fileno(), NO_ADDRESS, len(NO_ADDRESS))

    def has_all(self, frame: zmq.Frame) -> bool:
        """Return whether the kernel over there has acknowledged all that was sent to a peer.

        Then its process is there, whatever it does: for one that has gone the kernel resets the
        connection. `frame` is of a message that came over it.
        """
        with self._found(frame) as connection:
            if connection is None:
                return False
            left = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
            return int.from_bytes(left, sys.byteorder) == 0

    @contextmanager
    def _found(self, frame: zmq.Frame) -> Iterator[sockets.socket | None]:
        """Give the connection over which a message came, None if it may be another by now."""
        with contextlib.ExitStack() as closing:
            connection = None
            with contextlib.suppress(OSError, ValueError, zmq.ZMQError):  # it has ended
                host, number = str(frame.get("Peer-Address")), int(frame.get(zmq.SRCFD))
                if self._port and serial_of(frame) >= self._newest.get(number, 0):
                    dup = closing.enter_context(sockets.socket(fileno=os.dup(number)))
                    if (dup.getsockname()[1], dup.getpeername()[0]) == (self._port, host):
                        connection = dup
            yield connection


class _Shell(msgspec.Struct, frozen=True):
    """Carries messages between the sockets and the jobs; `refused` counts and logs."""

    jobs: "PlayedJobs"
    socket: "zmq.Socket[bytes]"
    poller: zmq.Poller
    authenticator: KeyAuthenticator
    keys: ServerKeys | None
    refused: Callable[[str], None]
    connections: Connections
    trimmer: IdleTrimmer = msgspec.field(default_factory=IdleTrimmer)
    tracer: Tracer = msgspec.field(default_factory=Tracer)
    faults: dict[bytes, int] = msgspec.field(default_factory=dict)
    # Of each rank a frame of its hello, which tells its connection.
    hellos: dict[bytes, zmq.Frame] = msgspec.field(default_factory=dict)

    def turn(self) -> None:
        """Wait once, for a message or the jobs' next deadline, and do what is due."""
        readable = self._wait()
        self.drop(self.authenticator.find_revoked(time.monotonic()))
        self.receive_all(is_readable=self.socket in readable)
        self.authenticator.answer_requests(readable)
        self.connections.end_silent(self.authenticator.events)
        now = time.monotonic()
        if now >= self.jobs.next_deadline():
            for peer in self.jobs.in_question():
                if peer in self.hellos and self.connections.has_all(self.hellos[peer]):
                    self.jobs.confirm(peer, now)
            self.send_all(self.jobs.tick(now))
            self.tracer.turned(now, time.monotonic())
        self.send_all(self.tracer.end_if_due(now))
        self.trimmer.trim_if_idle(time.monotonic())

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
                if payloads:
                    self.trimmer.note_payload(time.monotonic())
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
        if len(frames) > 2 or len(frames[-1]) > LARGE_BYTES:
            self.trimmer.note_payload(time.monotonic())
        self.connections.note(frames[0])
        peer, key, content = decode_from(frames, self.keys)
        if isinstance(content, WireError):
            reason = str(content)
        else:
            reasons = (self._handle(frames[0], key, *each) for each in content)
            reason = next(filter(None, reasons), "")
        if reason:
            self.refused(f"{_shown(peer)}: {reason}")
            self._tell_reason(peer, reason)
            self._count_fault(frames[0])

    def _handle(
        self, name: zmq.Frame, key: bytes, message: Message, frames: list[zmq.Frame]
    ) -> str:
        """Hand one message to its job; return why its peer may not, "" if it may."""
        peer = name.bytes
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
        if isinstance(message, JoinJob):
            self.hellos[peer] = name
            if len(self.hellos) > MAX_HELLOS:
                for each in [p for p in self.hellos if not self.jobs.knows(p)]:
                    del self.hellos[each]
        return ""

    def _count_fault(self, name: zmq.Frame) -> None:
        """Count a message that its peer may not send, and end its connection after some."""
        count = self.faults.pop(name.bytes, 0) + 1
        if count < MOST_FAULTS:
            self.faults[name.bytes] = count
            if len(self.faults) > MAX_FAULTY:
                del self.faults[next(iter(self.faults))]
        else:
            self.connections.reset(name)

    def _tell_reason(self, peer: bytes, reason: str) -> None:
        """Tell a peer why a message of it is rejected, if it can be reached."""
        with contextlib.suppress(zmq.ZMQError):
            send(self.socket, PeerRejected(reason), to=peer)


def _shown(peer: bytes) -> str:
    # What comes after the last dot only the peer itself knows, see transport/naming.py.
    shown = peer.rpartition(b".")[0] or peer
    return repr(shown.decode("ascii", "backslashreplace")[:SHOWN_NAME])
