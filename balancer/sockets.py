"""The project's ZeroMQ sockets: one ROUTER in the balancer, a DEALER in each peer.

A message is its header frame and its payload frames; a ROUTER puts the peer's name in front.
"""

import errno
import ipaddress
from collections.abc import Sequence

import zmq

from .messages import Message
from .wire import MAX_FRAMES, WireError, decode, encode

# The largest frame that is accepted: a payload is one decoded sample or one collated batch.
MAX_FRAME_BYTES = 8 << 30
# A dead connection is noticed by the transport after this long, in milliseconds.
HEARTBEAT_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 30_000

Received = tuple[Message, list[zmq.Frame]]


def listen(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> "zmq.Socket[bytes]":
    """Return a ROUTER bound to an address; OSError if it cannot be bound."""
    socket = context.socket(zmq.ROUTER)
    _configure(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        if error.errno == errno.EADDRINUSE:
            reason = "the port is taken: stop what listens there, or choose another"
        else:
            reason = f"{error}: give an address such as tcp://127.0.0.1:5555"
        raise OSError(f"cannot listen on {address}: {reason}") from error
    return socket


def connect(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, name: bytes
) -> "zmq.Socket[bytes]":
    """Return a DEALER of this name, connected (in the background) to an address."""
    socket = context.socket(zmq.DEALER)
    _configure(socket)
    socket.setsockopt(zmq.ROUTING_ID, name)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise ValueError(
            f"cannot connect to {address!r}: {error}: give an address such as tcp://HOST:5555"
        ) from error
    return socket


def check_open_address(address: str, allowed: bool) -> None:
    """Raise ValueError for an address that other hosts can reach, unless that is allowed.

    >>> check_open_address("tcp://127.0.0.1:5555", allowed=False)
    >>> check_open_address("ipc:///tmp/socket", allowed=False)
    """
    if allowed or not address.startswith("tcp://"):
        return
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{address} can be reached from other hosts, and nothing authenticates them: listen on "
            "tcp://127.0.0.1:PORT, or say --insecure if the network is private"
        )


def send(
    socket: "zmq.Socket[bytes]",
    message: Message,
    payloads: Sequence[object] = (),
    to: bytes | None = None,
) -> None:
    """Send a message; large payload frames are not copied."""
    front = [encode(message)] if to is None else [to, encode(message)]
    if not payloads:
        socket.send_multipart(front)
        return
    socket.send_multipart(front, zmq.SNDMORE)
    socket.send_multipart(payloads, copy=False)  # type: ignore[arg-type]


def receive(socket: "zmq.Socket[bytes]") -> Received | None:
    """Return the next message that a DEALER has received, or None if there is none."""
    frames = _frames(socket)
    return None if frames is None else _decoded(frames)


def receive_from(socket: "zmq.Socket[bytes]") -> tuple[bytes, Received | WireError] | None:
    """Return (peer, message) from a ROUTER, or what is wrong with it; None if there is nothing."""
    frames = _frames(socket)
    if frames is None:
        return None
    try:
        return frames[0].bytes, _decoded(frames[1:])
    except WireError as error:
        return frames[0].bytes, error


def _frames(socket: "zmq.Socket[bytes]") -> list[zmq.Frame] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def _decoded(frames: list[zmq.Frame]) -> Received:
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise WireError(f"a message of {len(frames)} frames, at most {MAX_FRAMES} are allowed")
    return decode(frames[0].buffer, len(frames) - 1), frames[1:]


def _configure(socket: "zmq.Socket[bytes]") -> None:
    """Never drop a message for lack of room: credits bound what is under way."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
