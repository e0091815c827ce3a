"""Encodes and decodes messages: a msgpack header frame, then raw payload frames.

The header is the array [protocol version, kind, field, field, ...]. Everything is bounded before it
is allocated: the number of frames, the size of the header by its kind, the length of msgpack
containers (at most the header's own bytes). Fields are checked against the annotations of the
record, so nothing behind this module sees a malformed message.
"""

import msgpack
import msgspec

from .messages import KINDS, PROTOCOL_VERSION, WITH_PAYLOADS, Message
from .records import read_record

# An array of empty arrays takes 80 times its header's bytes: only kinds that need it may be large.
MAX_HEADER_BYTES = 4 << 20
LARGE_HEADER_BYTES = {
    "ProbeDone": 32 << 20,
    "Lease": 32 << 20,
    "Batch": 64 << 20,
}
MAX_FRAMES = 65_537
MAX_CONTAINER = 1 << 20
MAX_TEXT_BYTES = 16 << 20
# An error quotes this many characters of a peer's text.
QUOTED = 80


class WireError(ValueError):
    """A message that the peer should not have sent; it is dropped and counted."""


def encode(message: Message) -> bytes:
    """Return the header frame of a message.

    >>> decode(encode(KINDS["Bye"]()), 0)
    Bye()
    """
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
    limit = LARGE_HEADER_BYTES.get(_peek_kind(header), MAX_HEADER_BYTES)
    if len(header) > limit:
        raise WireError(f"header of {len(header)} bytes, at most {limit} are allowed")
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
    message = _message(parts)
    expected = payload_frames(message)
    if payloads != expected:
        name = type(message).__name__
        raise WireError(f"{name} with {payloads} payload frames, it has {expected}")
    return message


def payload_frames(message: Message) -> int:
    """Return the number of payload frames that follow a message's header.

    Raises WireError if there are neither no handles nor one for each item.
    """
    if not isinstance(message, WITH_PAYLOADS):
        return 0
    items, handles = len(message.items), message.handles
    if handles and len(handles) != items:
        raise WireError(f"{type(message).__name__} with {len(handles)} handles of {items} items")
    return items - sum(handle is not None for handle in handles)


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
