"""A peer that speaks ZeroMQ's own protocol (ZMTP 3.1, no keys) over a plain socket."""

import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
LIMIT_S = 20
# A command that is to be answered with a PONG; no time to live.
PING = b"\x04\x07\x04PING\0\0"


def frame(content, more=False):
    """Return a message frame."""
    if len(content) < 256:
        return bytes([more, len(content)]) + content
    return bytes([2 | more]) + struct.pack(">Q", len(content)) + content


def connect(address, name):
    """Return a plain socket that has introduced itself as a DEALER of this name."""
    peer = greet(address)
    peer.sendall(ready(name))
    read(peer, read(peer, 2)[1])
    return peer


def greet(address):
    """Return a plain socket over which greetings have been exchanged."""
    host, port = address.removeprefix("tcp://").split(":")
    peer = socket.create_connection((host, int(port)), LIMIT_S)
    peer.sendall(GREETING)
    read(peer, len(GREETING))
    return peer


def ready(name):
    """Return the command by which a DEALER says its name."""
    properties = b"".join(
        bytes([len(key)]) + key + struct.pack(">I", len(value)) + value
        for key, value in ((b"Socket-Type", b"DEALER"), (b"Identity", name))
    )
    body = b"\x05READY" + properties
    return bytes([4, len(body)]) + body


def read(peer, size):
    """Return exactly so many bytes (with a time limit MSG_WAITALL may give fewer)."""
    content = b""
    while len(content) < size:
        content += peer.recv(size - len(content))
    return content


def reset(peer):
    """Close a connection so that the other side learns of it at once, whatever is on its way."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
