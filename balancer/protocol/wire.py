"""Encodes and decodes messages: a msgpack header frame, then raw payload frames.

The header is the array [protocol version, kind, field, field, ...]. Everything is bounded before it
is allocated: the number of frames, the size of the header by its kind, the length of msgpack
containers (at most the header's own bytes). Fields are checked against the annotations of the
record, so nothing behind this module sees a malformed message.

There are two ways, of one result. msgspec's own codec is several times faster, and is used for what
it can write and read. Everything else, such as half a surrogate pair or a malformed message, goes
through plain values, which also says what is wrong.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgpack
import msgspec

from .messages import (
    KINDS,
    PROTOCOL_VERSION,
    WITH_PAYLOADS,
    Message,
    PulledPayloads,
)
from .records import read_record

# An array of empty arrays takes 80 times its header's bytes: only kinds that need it may be large.
MAX_HEADER_BYTES = 4 << 20
HEADER_BYTES = {
    "ProbeDone": 32 << 20,
    "Lease": 32 << 20,
    "Batch": 64 << 20,
    "PullPayloads": 1 << 20,
    "PulledPayloads": 1 << 20,
}
MAX_FRAMES = 65_537
MAX_CONTAINER = 1 << 20
MAX_TEXT_BYTES = 16 << 20
# An array of so many elements, our two and the fields, has a first byte that says so.
MAX_SHORT_ARRAY = 15
_SHORT_ARRAY = 0x90
# An error quotes this many characters of a peer's text.
QUOTED = 80


class WireError(ValueError):
    """A message that the peer should not have sent; it is dropped and counted."""


def encode(message: Message) -> bytes:
    """Return the header frame of a message.

    >>> decode(encode(KINDS["Bye"]()), 0)
    Bye()
    """
    codec = _CODECS.get(type(message).__name__)
    if codec is not None:
        with contextlib.suppress(UnicodeEncodeError):
            return codec.front + _ENCODER.encode(message)[1:]
    values = msgspec.to_builtins(message, builtin_types=(bytes,))
    # A reason may quote anything, such as half a surrogate pair.
    packed: bytes = msgpack.packb(
        [PROTOCOL_VERSION, type(message).__name__, *values], unicode_errors="backslashreplace"
    )
    return packed


def decode(header: bytes | memoryview, payloads: int) -> Message:
    """Return the message in a header frame that came with this number of payload frames.

    Raises WireError for anything that `encode` cannot have made.
    """
    kind = _peek_kind(header)
    limit = HEADER_BYTES.get(kind, MAX_HEADER_BYTES)
    if len(header) > limit:
        raise WireError(f"header of {len(header)} bytes, at most {limit} are allowed")
    message = _read_at_once(header, kind)
    if message is None:
        message = _read_plain(header)
    expected = payload_frames(message)
    if payloads != expected:
        name = type(message).__name__
        raise WireError(f"{name} with {payloads} payload frames, it has {expected}")
    return message


class _Codec(msgspec.Struct, frozen=True):
    """A kind's codec: the first bytes of its headers, those of its record, and the decoder."""

    front: bytes
    record_front: bytes
    decoder: msgspec.msgpack.Decoder[Any]


def _codecs() -> Mapping[str, _Codec]:
    """Return the codecs of the kinds with few enough fields."""
    codecs = {}
    for name, kind in KINDS.items():
        fields = len(kind.__struct_fields__)
        if fields + 2 <= MAX_SHORT_ARRAY:
            front = msgpack.packb([PROTOCOL_VERSION, name])[1:]
            codecs[name] = _Codec(
                bytes([_SHORT_ARRAY + fields + 2]) + front,
                bytes([_SHORT_ARRAY + fields]),
                msgspec.msgpack.Decoder(kind),
            )
    return codecs


_ENCODER = msgspec.msgpack.Encoder()
_CODECS = _codecs()


def _read_at_once(header: bytes | memoryview, kind: str) -> Message | None:
    """Return the message of a kind, None if it cannot be read in this way.

    msgspec allocates no container that is longer than the rest of the header.
    """
    codec = _CODECS.get(kind)
    if codec is None or len(header) > MAX_CONTAINER or header[: len(codec.front)] != codec.front:
        return None
    try:
        record = b"".join((codec.record_front, header[len(codec.front) :]))
        message: Message = codec.decoder.decode(record)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return message


def _read_plain(header: bytes | memoryview) -> Message:
    """Return the message in a header by way of plain values; WireError says what is wrong."""
    try:
        parts = msgpack.unpackb(
            header,
            max_array_len=min(MAX_CONTAINER, len(header)),
            max_map_len=0,
            max_ext_len=0,
            max_str_len=MAX_TEXT_BYTES,
            max_bin_len=MAX_TEXT_BYTES,
        )
    except (ValueError, msgpack.exceptions.UnpackException, MemoryError) as error:
        raise WireError(f"not a msgpack header: {error!s:.{QUOTED}}") from error
    return _message(parts)


def payload_frames(message: Message) -> int:
    """Return the number of payload frames that follow a message's header."""
    if isinstance(message, PulledPayloads):
        return len(message.serials)
    if isinstance(message, WITH_PAYLOADS):
        return [item.serial for item in message.items].count(0)
    return 0


def _peek_kind(header: bytes | memoryview) -> str:
    """Return the kind that a header's first bytes name; not our form gives "" or nonsense.

    >>> _peek_kind(encode(KINDS["Bye"]()))
    'Bye'
    """
    length = header[2] & 0x1F if len(header) > 2 and header[2] >> 5 == 0b101 else 0
    return bytes(header[3 : 3 + length]).decode("ascii", "replace")


def _message(parts: object) -> Message:
    if not isinstance(parts, list) or len(parts) < 2:
        raise WireError("a header is an array of version, kind and fields")
    version, name, *values = parts
    # The version comes first: a peer of another one has other kinds and fields.
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"the peer speaks protocol version {version!r:.{QUOTED}}, this side "
            f"{PROTOCOL_VERSION}: install the same counterpoise on both"
        )
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise WireError(f"no such kind of message: {name!r:.{QUOTED}}")
    # Fields with defaults may not be left out: they are for the side that makes the message.
    count = len(kind.__struct_fields__)
    if len(values) != count:
        raise WireError(f"{name} has {count} fields, got {len(values)}")
    try:
        message: Message = read_record(kind, values, name)
    except ValueError as error:
        raise WireError(str(error)) from None
    return message
