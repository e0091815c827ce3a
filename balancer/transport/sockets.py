"""The project's ZeroMQ sockets: one ROUTER in the balancer, a DEALER in each peer.

A message is its header frame and its payload frames; a ROUTER puts the peer's name in front.
"""

import errno
import struct
from collections import deque
from collections.abc import Sequence

import zmq

from ..protocol.messages import Message
from .finding import needs_ipv6
from .keys import KeyPair, PeerKeys, ServerKeys
from .wire import MAX_FRAMES, WireError, decode_all, encode, encode_all

# The largest frame that is accepted: a payload is one decoded sample or one collated batch.
MAX_FRAME_BYTES = 8 << 30
# The same where other hosts may connect: room for it is made before the peer is known.
MAX_REMOTE_FRAME_BYTES = 1 << 30
# Most messages to a peer that does not read (then it is disconnected).
MAX_WAITING_OUT = 1 << 16
# The kernel ends a connection whose other side answers nothing for this many seconds: it asks after
# the first, and then every so many.
DEAD_AFTER_S = 30
KEEPALIVE_IDLE_S = 10
KEEPALIVE_EVERY_S = 5
# A peer tries again at growing intervals, up to this many milliseconds; a name is looked up anew.
RECONNECT_MS = 2_000
# This many handshakes fail in a row only if the two sides can never agree.
FAILED_HANDSHAKES = 5
# How long a closing socket still tries to send its last messages, in milliseconds. A trainer's say
# that its workers have ended and that it leaves: if they are lost (a busy machine sends late),
# other ranks wait until the balancer has missed those workers for long.
LINGER_MS = {"worker": 1000, "balancer": 2000, "trainer": 3000}

# The first byte of names that a ROUTER makes up; all our peers have names of their own. When a peer
# connects anew before its former connection has ended, what is left of that comes under such a one:
# a hello would be taken for another process' that plays the same rank.
NO_NAME = b"\0"

Received = tuple[Message, list[zmq.Frame]]

# The beginning of a monitor's message.
_EVENT = struct.Struct("=H")
# Numbers: pyzmq's enumerations are many times slower in every operation.
_READABLE, _MORE = int(zmq.POLLIN), int(zmq.SNDMORE)
_NOBLOCK, _NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def listen(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    keys: ServerKeys | None = None,
    descriptor: int | None = None,
) -> "zmq.Socket[bytes]":
    """Return a ROUTER bound to an address; OSError if it cannot be bound.

    `descriptor` is a socket that listens there already; it now belongs to the ROUTER.

    With keys it accepts only peers that an authenticator on the same context accepts.
    """
    socket = open_router(context, keys.pair if keys is not None else None)
    if address.startswith("tcp:"):
        socket.setsockopt(zmq.IPV6, needs_ipv6(address))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REMOTE_FRAME_BYTES)
    if descriptor is not None:
        socket.setsockopt(zmq.USE_FD, descriptor)
    _bind(socket, address)
    return socket


def open_router(
    context: "zmq.Context[zmq.Socket[bytes]]", pair: KeyPair | None, passwords: bool = False
) -> "zmq.Socket[bytes]":
    """Return a ROUTER that is not bound yet, with the keys of its own, if any; see `listen`.

    With passwords instead an authenticator decides by them, and nothing is encrypted.
    """
    socket = context.socket(zmq.ROUTER)
    _configure(socket)
    socket.setsockopt(zmq.SNDHWM, MAX_WAITING_OUT)
    if pair is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
    if passwords:
        socket.setsockopt(zmq.PLAIN_SERVER, 1)
    if passwords or pair is not None:
        socket.setsockopt(zmq.ZAP_DOMAIN, b"counterpoise")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


def _bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        if error.errno == errno.EADDRINUSE:
            reason = "the port is taken: stop what listens there, or choose another"
        elif address.startswith("ipc:"):
            reason = f"{error}: free some space there, or set TMPDIR to another directory"
        else:
            reason = f"{error}: give an address such as tcp://127.0.0.1:5555"
        raise OSError(f"cannot listen on {address}: {reason}") from error


def connect(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    name: bytes,
    keys: PeerKeys | None = None,
    monitored: int = 0,
    password: bytes = b"",
) -> "zmq.Socket[bytes]":
    """Return a DEALER of this name, connected (in the background) to an address.

    With keys it talks only to the balancer that has the secret of `keys.balancer`. A password
    identifies the peer where nothing is encrypted. `monitored`: the events that a monitor of this
    socket, which is to be closed, will be asked for, `Handshakes.EVENTS` for one of these: the
    first must not be missed.
    """
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    socket.setsockopt(zmq.IPV6, needs_ipv6(address))
    socket.setsockopt(zmq.ROUTING_ID, name)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.balancer)
    if password:
        socket.setsockopt(zmq.PLAIN_USERNAME, name)
        socket.setsockopt(zmq.PLAIN_PASSWORD, password)
    if address.startswith("tcp:"):
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS)
    try:
        if monitored:
            socket.get_monitor_socket(monitored)
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.disable_monitor()
        socket.close()  # an open one would hold up the end of its context for ever
        if error.errno == errno.EMFILE:
            raise OSError(error.errno, "too many open files: raise ulimit -n") from error
        raise ValueError(
            f"cannot connect to {address!r}: {error}: give an address such as tcp://HOST:5555"
        ) from error
    return socket


def read_event(monitor: "zmq.Socket[bytes]") -> int:
    """Return the number of the event that waits at a monitor.

    zmq.utils.monitor does so too, but imports asyncio and ssl, which takes a balancer's start.
    """
    return int(_EVENT.unpack_from(monitor.recv_multipart()[0])[0])


class Handshakes:
    """Watches the handshakes of a monitored socket; close it before the context ends.

    After some failures (of protocol, of the key) libzmq never connects again and reports it only
    here. A connection that just ends during its handshake proves little: the network may be cut, or
    a proxy may wait for a balancer that restarts. Only for a peer that has keys and has never been
    answered do several in a row count as a rejection: libzmq reports no more than that to peers
    whose keys do not match.
    """

    EVENTS = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    )

    def __init__(self, socket: "zmq.Socket[bytes]", keyed: bool) -> None:
        self._monitor = socket.get_monitor_socket(self.EVENTS)
        self._keyed = keyed
        # broken: connections that ended in their handshake.
        self._failed = self.broken = 0
        self._never_answered = keyed

    def rejection_reason(self) -> str:
        """Return why the balancer will never accept this socket; empty while it may."""
        while self._monitor.poll(0):
            match read_event(self._monitor):
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._failed, self._never_answered = 0, False
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    return "the balancer does not allow this key (any more): ask who runs it"
                case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._failed = FAILED_HANDSHAKES
                case _:
                    self.broken += 1
                    self._failed += self._never_answered
        if self._failed < FAILED_HANDSHAKES:
            return ""
        if self._keyed:
            return (
                "the balancer does not prove that it has the key in our balancer.pub: start it "
                "with --keys, and use keys that the same counterpoise keygen made"
            )
        return (
            "the balancer requires keys: make them with counterpoise keygen and give their folder"
        )

    def close(self) -> None:
        """Close the monitor."""
        self._monitor.close(linger=0)


def send(
    socket: "zmq.Socket[bytes]",
    message: Message,
    payloads: Sequence[object] = (),
    to: bytes | None = None,
) -> None:
    """Send a message; large payload frames are not copied.

    Raises ZMQError if `to` is not connected (EHOSTUNREACH) or does not read (EAGAIN). A DEALER that
    the balancer rejected loses its messages; `Handshakes` reports the reason.
    """
    front = [encode(message)] if to is None else [to, encode(message)]
    send_frames(socket, front, payloads)


def send_frames(
    socket: "zmq.Socket[bytes]", front: list[bytes], payloads: Sequence[object] = ()
) -> None:
    """Send a message whose front is encoded; raises as `send` does."""
    # Part by part, here and where messages are received: pyzmq's loops over parts compute with
    # enumerations, which takes three times as long as to send a small message.
    try:
        for part in front[:-1]:
            socket.send(part, _NOBLOCK_MORE)
        socket.send(front[-1], _NOBLOCK_MORE if payloads else _NOBLOCK)
    except zmq.Again:
        if socket.type == zmq.DEALER:
            return
        raise
    for number, payload in enumerate(payloads, start=1):
        more = _MORE if number < len(payloads) else 0
        socket.send(payload, more, copy=False)  # type: ignore[call-overload]


def send_together(
    socket: "zmq.Socket[bytes]", messages: Sequence[Message], payloads: Sequence[object] = (),
    to: bytes | None = None,
) -> None:  # fmt: skip
    """Send a message, or several without payloads as one; raises as `send` does."""
    for header in [encode(messages[0])] if payloads else encode_all(messages):
        send_frames(socket, [header] if to is None else [to, header], payloads)


def receive(socket: "zmq.Socket[bytes]") -> Received | None:
    """Return the next message that a DEALER has received, or None if there is none.

    Raises WireError for several in one: those who are told many things have a `Link`.
    """
    frames = receive_frames(socket)
    received = [] if frames is None else _decoded(frames)
    if len(received) > 1:
        raise WireError(f"{len(received)} messages in one, one is allowed here")
    return received[0] if received else None


def decode_routed(
    frames: list[zmq.Frame], keys: ServerKeys | None = None
) -> tuple[bytes, bytes, list[Received] | WireError]:
    """Return (peer, its key, messages or their error) of a ROUTER's frames.

    The key is empty where no keys are used.
    """
    key = b"" if keys is None else _read_key(frames[0])
    try:
        return frames[0].bytes, key, _decoded(frames[1:])
    except WireError as error:
        # Another one: this one's traceback has the frames, and the caller, which keeps the error.
        return frames[0].bytes, key, WireError(str(error))


def _read_key(frame: zmq.Frame) -> bytes:
    """Return the key that the authenticator accepted; libzmq adds it to each frame of the peer."""
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""


def receive_frames(socket: "zmq.Socket[bytes]", waits: bool = False) -> list[zmq.Frame] | None:
    """Return the frames of the next message, or None if there is none; `waits`: there is likely."""
    if not waits and not is_readable(socket):  # an exception costs several times as much
        return None
    try:
        frames = [socket.recv(_NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(socket.recv(_NOBLOCK, copy=False))
    except zmq.Again:
        return None
    return frames


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Return whether a message waits; its own `poll` takes four times as long."""
    return bool(zmq.zmq_poll([(socket, _READABLE)], 0))


def _decoded(frames: list[zmq.Frame]) -> list[Received]:
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise WireError(f"a message of {len(frames)} frames, at most {MAX_FRAMES} are allowed")
    payloads = frames[1:]
    return [(message, payloads) for message in decode_all(frames[0].buffer, len(payloads))]


def _configure(socket: "zmq.Socket[bytes]") -> None:
    """Set options so that no message is dropped for lack of room: credits bound the number.

    Neither RCVHWM nor ZeroMQ's heartbeats are used. Where a socket may receive no more, libzmq
    stops reading the connection; if that ends meanwhile, anything that makes it write afterwards (a
    heartbeat of its own, or the answer to a peer's that was read before) aborts the process:
    "Assertion failed: !_io_error" (libzmq 4.3.5, issues 3937, 4767, 4841). Without RCVHWM it never
    stops. Our own heartbeats, and the kernel's, find peers that are gone.
    """
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, (DEAD_AFTER_S - KEEPALIVE_IDLE_S) // KEEPALIVE_EVERY_S)
    socket.setsockopt(zmq.TCP_MAXRT, 1000 * DEAD_AFTER_S)


class Link:
    """A peer's connection to the balancer. Not thread-safe; call `close()`."""

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
        self._socket = connect(context, endpoint, name, keys, monitored=Handshakes.EVENTS)
        self.handshakes = Handshakes(self._socket, keyed=keys is not None)
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)
        self._waiting = deque[Received]()  # what came together with the last

    def register(self, poller: zmq.Poller) -> None:
        """Have another poller woken up by messages, too."""
        poller.register(self._socket, zmq.POLLIN)

    def send(self, message: Message, payloads: Sequence[object] = ()) -> None:
        """Send a message; one that cannot be sent is lost."""
        send(self._socket, message, payloads)

    def send_together(self, messages: Sequence[Message]) -> None:
        """Send messages without payloads, several as one; those that cannot be sent are lost."""
        send_together(self._socket, messages)

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        if not self._waiting and (frames := receive_frames(self._socket)) is not None:
            self._waiting.extend(_decoded(frames))
        return self._waiting.popleft() if self._waiting else None

    def close(self, linger_ms: int) -> None:
        """Close the sockets; messages that were sent may need `linger_ms` to leave."""
        self.handshakes.close()
        self._socket.close(linger=linger_ms)
