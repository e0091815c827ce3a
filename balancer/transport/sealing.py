"""Seals the messages of a clear channel: the header is encrypted, payload frames are not.

Under CURVE every byte is encrypted, by both sides of both hops. Where pixels may be read on the
wire but must not be changed, a peer has a second connection without CURVE, the clear channel, whose
secrets it receives under CURVE. Each message is sealed with AES-256-GCM (NIST SP 800-38D): the
header is encrypted and the payload frames are its additional data, so the tag in the header's frame
authenticates all of them. That costs a tenth of what CURVE does (`bench transport`), since
processors have instructions for it.

Messages are numbered, the number is part of the nonce, and numbers only grow: no message is
accepted twice or out of order, and no nonce is used twice with a key, which is made for one
connection and sent once.
"""

import importlib.util
import os
import struct
from collections.abc import Sequence
from typing import Any

from ..protocol.messages import ClearPayloadOffer, Message
from ..protocol.wire import MAX_FRAMES, WireError, decode, encode

KEY_BYTES = 32
# The front frame is a number of 8 bytes, then the sealed header with its tag.
_NUMBER = struct.Struct(">Q")
_TAG_BYTES = 16
# The lengths of the payload frames precede the header, so nobody can move bytes between frames.
_COUNT, _LENGTH = struct.Struct(">I"), struct.Struct(">Q")
# The first bytes of a nonce (12 bytes in GCM) tell the two directions apart.
FROM_BALANCER, FROM_PEER = b"BLNC", b"PEER"
# Over a clear channel: it works (sent by both sides). Under CURVE: the clear channel is given up.
EMPTY_OFFER = ClearPayloadOffer(0, b"", b"", b"")


def is_available() -> bool:
    """Return True if messages can be sealed: the package cryptography is optional."""
    return importlib.util.find_spec("cryptography") is not None


def new_offer(port: int) -> ClearPayloadOffer:
    """Return an offer with new secrets, for one connection to a port."""
    return ClearPayloadOffer(
        port, os.urandom(16).hex().encode(), os.urandom(16).hex().encode(), os.urandom(32)
    )


class AeadSeal:
    """Seals the messages of one direction and opens those of the other."""

    def __init__(self, key: bytes, sender: bytes) -> None:
        """`sender` is this side, whose messages are sealed: FROM_BALANCER or FROM_PEER."""
        from cryptography.hazmat.primitives.ciphers.algorithms import AES

        if len(key) != KEY_BYTES:
            raise WireError(f"a clear channel's key has {KEY_BYTES} bytes, got {len(key)}")
        self._cipher = AES(key)
        self._here = sender
        self._there = FROM_PEER if sender == FROM_BALANCER else FROM_BALANCER
        self._sent = self._received = 0

    def close(self, message: Message, payloads: Sequence[Any] = ()) -> bytes:
        """Return the frame that goes in front of a message's payload frames (buffers)."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        self._sent += 1
        number = _NUMBER.pack(self._sent)
        sealing = Cipher(self._cipher, GCM(self._here + number)).encryptor()
        lengths = [_LENGTH.pack(memoryview(payload).nbytes) for payload in payloads]
        for payload in payloads:
            sealing.authenticate_additional_data(payload)
        plain = b"".join([_COUNT.pack(len(lengths)), *lengths, encode(message)])
        return number + sealing.update(plain) + sealing.finalize() + sealing.tag

    def open(self, front: bytes | memoryview, payloads: Sequence[Any] = ()) -> Message:
        """Return the message of a sealed frame and its payload frames (buffers).

        Raises WireError for anything that the other side has not sealed after its last message.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        front = memoryview(front)
        if len(front) < _NUMBER.size + _TAG_BYTES or len(payloads) >= MAX_FRAMES:
            raise WireError("not a sealed message")
        number, tag = bytes(front[: _NUMBER.size]), bytes(front[-_TAG_BYTES:])
        opening = Cipher(self._cipher, GCM(self._there + number, tag)).decryptor()
        for payload in payloads:
            opening.authenticate_additional_data(payload)
        plain = opening.update(front[_NUMBER.size : -_TAG_BYTES])
        try:
            plain += opening.finalize()
        except InvalidTag:
            raise WireError("a message was changed on its way, or is not from the peer") from None
        (count,) = _NUMBER.unpack(number)
        if count <= self._received:
            raise WireError(f"message {count} arrived after message {self._received}")
        self._received = count
        return decode(_header(plain, payloads), len(payloads))


def _header(plain: bytes, payloads: Sequence[Any]) -> memoryview:
    """Return the header behind the lengths, which must be those of the payload frames."""
    arrived = [_LENGTH.pack(memoryview(payload).nbytes) for payload in payloads]
    lengths = b"".join([_COUNT.pack(len(arrived)), *arrived])
    if not plain.startswith(lengths):
        raise WireError("the payload frames do not have the lengths that were sealed")
    return memoryview(plain)[len(lengths) :]
