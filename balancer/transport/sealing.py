"""Messages of a bulk connection: the header is encrypted, payload frames are in the clear.

Under CURVE every byte is encrypted, by both sides of both hops. Where pixels may be seen on the
wire but must not be changed, a peer has a second connection, without CURVE, whose secrets it was
told under CURVE. Each message is sealed with AES-256-GCM (NIST SP 800-38D): the header is
encrypted, the payload frames are its additional data, so that the tag in the header's frame is a
keyed digest of all. That costs a tenth of what CURVE does (`bench transport`), since processors
have instructions for it.

A message is numbered, its number is in its nonce, and numbers only grow: nothing is taken twice or
out of order, and no nonce is used twice with a key, which is made for one connection and told once.
"""

import importlib.util
import os
import struct
from collections.abc import Sequence
from typing import Any

from ..protocol.messages import ClearPayloadOffer, Message
from ..protocol.wire import MAX_FRAMES, WireError, decode, encode

KEY_BYTES = 32
# Of the frame in front: a number of 8 bytes, then the sealed header with its tag.
_NUMBER = struct.Struct(">Q")
_TAG_BYTES = 16
# Before the header the lengths of the payload frames, so that what follows is cut only as it was.
_COUNT, _LENGTH = struct.Struct(">I"), struct.Struct(">Q")
# What keeps the nonces of the two ways apart; a nonce of GCM has 12 bytes.
FROM_BALANCER, FROM_PEER = b"BLNC", b"PEER"
# What says over a bulk connection that it works, and over the other that it is not used any more.
NO_BULK = ClearPayloadOffer(0, b"", b"", b"")


def is_available() -> bool:
    """Whether this process can seal messages: the package cryptography is optional."""
    return importlib.util.find_spec("cryptography") is not None


def new_bulk(port: int) -> ClearPayloadOffer:
    """Return secrets for one connection to a port."""
    return ClearPayloadOffer(
        port, os.urandom(16).hex().encode(), os.urandom(16).hex().encode(), os.urandom(32)
    )


class AeadSeal:
    """Seals messages one way and opens those that come the other way."""

    def __init__(self, key: bytes, sends: bytes) -> None:
        """`sends` is whose messages this side seals: FROM_BALANCER or FROM_PEER."""
        from cryptography.hazmat.primitives.ciphers.algorithms import AES

        if len(key) != KEY_BYTES:
            raise WireError(f"a bulk key of {len(key)} bytes, it has {KEY_BYTES}")
        self._cipher = AES(key)
        self._sends, self._takes = sends, FROM_PEER if sends == FROM_BALANCER else FROM_BALANCER
        self._sent = self._taken = 0

    def close(self, message: Message, payloads: Sequence[Any] = ()) -> bytes:
        """Return the frame that goes in front of a message's payload frames (buffers)."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        self._sent += 1
        number = _NUMBER.pack(self._sent)
        sealing = Cipher(self._cipher, GCM(self._sends + number)).encryptor()
        lengths = [_LENGTH.pack(memoryview(payload).nbytes) for payload in payloads]
        for payload in payloads:
            sealing.authenticate_additional_data(payload)
        plain = b"".join([_COUNT.pack(len(lengths)), *lengths, encode(message)])
        return number + sealing.update(plain) + sealing.finalize() + sealing.tag

    def open(self, front: bytes | memoryview, payloads: Sequence[Any] = ()) -> Message:
        """Return the message of a sealed frame and its payload frames (buffers).

        Raises WireError for anything that the other side has not sealed, or not after the last one.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.modes import GCM

        front = memoryview(front)
        if len(front) < _NUMBER.size + _TAG_BYTES or len(payloads) >= MAX_FRAMES:
            raise WireError("not a sealed message")
        number, tag = bytes(front[: _NUMBER.size]), bytes(front[-_TAG_BYTES:])
        opening = Cipher(self._cipher, GCM(self._takes + number, tag)).decryptor()
        for payload in payloads:
            opening.authenticate_additional_data(payload)
        plain = opening.update(front[_NUMBER.size : -_TAG_BYTES])
        try:
            plain += opening.finalize()
        except InvalidTag:
            raise WireError("a message has been changed on its way, or is not the peer's") from None
        (count,) = _NUMBER.unpack(number)
        if count <= self._taken:
            raise WireError(f"message {count} came after message {self._taken}")
        self._taken = count
        return decode(_header(plain, payloads), len(payloads))


def _header(plain: bytes, payloads: Sequence[Any]) -> memoryview:
    """Return what follows the lengths, which must be those of the payload frames."""
    told = [_LENGTH.pack(memoryview(payload).nbytes) for payload in payloads]
    lengths = b"".join([_COUNT.pack(len(told)), *told])
    if not plain.startswith(lengths):
        raise WireError("the payload frames are not cut as they were")
    return memoryview(plain)[len(lengths) :]
