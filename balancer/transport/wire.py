"""Encodes and decodes messages: a msgpack header frame, then raw payload frames.

The header is the array [protocol version, kind, field, field, ...]. Everything is bounded before it
is allocated: the number of frames, the size of the header, the length of msgpack
containers (at most the header's own bytes, says msgspec). Fields are checked against the
annotations of the record, so nothing behind this module sees a malformed message.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..job import messages as of_job
from ..parties import messages as of_parties
from ..pool import messages as of_pool
from ..protocol import messages
from ..protocol.messages import PROTOCOL_VERSION, Message
from ..protocol.records import ArrayRecord, describe_error


class Several(ArrayRecord, frozen=True):
    """Messages to one peer that travel as one: their headers. They are of SMALL_KINDS."""

    headers: tuple[bytes, ...]


KINDS: dict[str, type[ArrayRecord]] = {
    kind.__name__: kind
    for kinds in (messages.KINDS, of_job.KINDS, of_parties.KINDS, of_pool.KINDS, (Several,))
    for kind in kinds
}
# Kinds without payload frames that are sent often; up to so many, of so many bytes, are one frame.
SMALL_KINDS = frozenset({*of_pool.KINDS, *of_job.SMALL_KINDS, *of_parties.SMALL_KINDS})
MAX_JOINED, MAX_JOINED_BYTES = 64, 64 << 10

# Most bytes of a large header are the costs of a source's samples, of 8 bytes each.
MAX_HEADER_BYTES = 256 << 20
MAX_FRAMES = 65_537
# An error quotes this many characters of a peer's text.
QUOTED = 80


class WireError(ValueError):
    """A message that the peer should not have sent; it is dropped and counted."""


def encode(message: Message) -> bytes:
    """Return the header frame of a message.

    >>> decode(encode(KINDS["Bye"]()), 0)
    Bye()
    """
    codec = _CODECS[type(message).__name__]
    try:
        fields = _ENCODER.encode(message)
    except UnicodeEncodeError:
        # A reason may quote anything, such as half a surrogate pair.
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        fields = _ENCODER.encode(_encodable(plain))
    return codec.header_prefix + fields[len(codec.record_prefix) :]


def encode_all(messages: Sequence[Message]) -> list[bytes]:
    """Return the fewest header frames that hold messages without payload frames, in their order.

    >>> free = [of_pool.FreeParts((serial,)) for serial in range(65)]
    >>> [len(decode_all(frame, 0)) for frame in encode_all(free)]
    [64, 1]
    """
    frames: list[bytes] = []
    joined: list[bytes] = []
    nbytes = 0
    for message in messages:
        header, is_small = encode(message), type(message) in SMALL_KINDS
        if not is_small or len(joined) == MAX_JOINED or nbytes + len(header) > MAX_JOINED_BYTES:
            frames += _join(joined)
            joined, nbytes = [], 0
        if is_small:
            joined.append(header)
            nbytes += len(header)
        else:
            frames.append(header)
    return frames + _join(joined)


def _join(headers: list[bytes]) -> list[bytes]:
    return [encode(Several(tuple(headers)))] if len(headers) > 1 else headers


def decode_all(header: bytes | memoryview, payload_count: int) -> list[Message]:
    """Return the messages in a header frame, which came with so many payload frames.

    Raises WireError for anything that `encode` and `encode_all` cannot have made.
    """
    message = decode(header, payload_count)
    if type(message) is not Several:
        return [message]
    if not 2 <= len(message.headers) <= MAX_JOINED:
        raise WireError(f"{len(message.headers)} messages in one, 2 to {MAX_JOINED} are allowed")
    for kind in map(_read_kind, message.headers):
        if kind not in SMALL_KIND_NAMES:
            raise WireError(f"{kind} does not travel with others")
    return [decode(inner, 0) for inner in message.headers]


def _encodable(value: Any) -> Any:
    """Return plain values whose text can be encoded."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return [*map(_encodable, value)] if isinstance(value, list | tuple) else value


def decode(header: bytes | memoryview, payload_count: int) -> Message:
    """Return the message in a header frame that came with this number of payload frames.

    Raises WireError for anything that `encode` cannot have made.
    """
    kind = _read_kind(header)
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"header of {len(header)} bytes, at most {MAX_HEADER_BYTES} are allowed")
    codec = _CODECS[kind]
    if header[: len(codec.header_prefix)] != codec.header_prefix:
        # Fields with defaults may not be left out: they are for the side that makes the message.
        length = int.from_bytes(header[1:3], "big") if header[0] == _LONG else header[0] & 0xF
        count = len(KINDS[kind].__struct_fields__)
        raise WireError(f"{kind} has {count} fields, got {length - 2}")
    try:
        record = b"".join((codec.record_prefix, header[len(codec.header_prefix) :]))
        message: Message = codec.decoder.decode(record)
    except msgspec.ValidationError as error:
        raise WireError(f"{kind}{describe_error(KINDS[kind], str(error))}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a msgpack header: {error!s:.{QUOTED}}") from None
    expected = count_payload_frames(message)
    if payload_count != expected:
        raise WireError(f"{kind} with {payload_count} payload frames, it has {expected}")
    return message


class _Codec(msgspec.Struct, frozen=True):
    """A kind's codec: the first bytes of its headers, those of its record, and the decoder."""

    header_prefix: bytes
    record_prefix: bytes
    decoder: msgspec.msgpack.Decoder[Any]


# The first byte of an array of 16 elements and more; its length is in two bytes behind.
_LONG = 0xDC
_ENCODER = msgspec.msgpack.Encoder()


def _begin_array(length: int) -> bytes:
    r"""Return how msgpack announces an array.

    >>> _begin_array(2), _begin_array(16)
    (b'\x92', b'\xdc\x00\x10')
    """
    return bytes([0x90 + length]) if length < 16 else bytes([_LONG]) + length.to_bytes(2, "big")


def _make_codec(name: str, kind: type) -> _Codec:
    count = len(kind.__struct_fields__)  # type: ignore[attr-defined]
    prefix = _begin_array(count + 2) + _ENCODER.encode(PROTOCOL_VERSION) + _ENCODER.encode(name)
    return _Codec(prefix, _begin_array(count), msgspec.msgpack.Decoder(kind))


SMALL_KIND_NAMES = frozenset(kind.__name__ for kind in SMALL_KINDS)
_CODECS: Mapping[str, _Codec] = {name: _make_codec(name, kind) for name, kind in KINDS.items()}


def count_payload_frames(message: Message) -> int:
    """Return the number of payload frames that follow a message's header."""
    return message.frames if isinstance(message, of_job.WITH_FRAMES) else 0


def _read_kind(header: bytes | memoryview) -> str:
    """Return the kind that a header's first bytes name; WireError if they are not of our form.

    The version comes first: a peer of another one has other kinds and fields.
    """
    first_byte = header[0] if header else 0
    start = 3 if first_byte == _LONG else 1
    if (first_byte != _LONG and first_byte >> 4 != 0x9) or len(header) < start + 2:
        raise WireError("not a msgpack header: an array of version, kind and fields")
    version, name_byte = header[start : start + 2]
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"the peer speaks protocol version {version}, this side {PROTOCOL_VERSION}: install "
            "the same counterpoise on both"
        )
    length = name_byte & 0x1F if name_byte >> 5 == 0b101 else 0
    name = bytes(header[start + 2 : start + 2 + length]).decode(errors="replace")
    if name not in KINDS:
        raise WireError(f"no such kind of message: {name!r:.{QUOTED}}")
    return name
