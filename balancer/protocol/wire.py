"""The wire format: a msgpack header frame, then raw payload frames.

The header is the array [protocol version, kind, field, field, ...]. Everything is bounded before it
is allocated: the number of frames, the size of the header by its kind, the length of msgpack
containers (at most the header's own bytes). Fields are checked against the annotations of the
record: a malformed message gets no further than here.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import msgpack

from .messages import KINDS, PROTOCOL_VERSION, Message

# An array of empty arrays takes 80 times its header's bytes: only kinds that need it may be large.
MAX_HEADER_BYTES = 4 << 20
LARGE_HEADER_BYTES = {
    "ProbeDone": 32 << 20,
    "SubmitTask": 32 << 20,
    "Lease": 32 << 20,
    "Batch": 64 << 20,
}
MAX_FRAMES = 65_537
MAX_CONTAINER = 1 << 20
MAX_TEXT_BYTES = 16 << 20
MAX_INTEGER = (1 << 63) - 1
# What a reason quotes of a peer's text.
QUOTED = 80

Check = Callable[[object], Any]


class WireError(ValueError):
    """A message that the peer should not have sent; it is dropped and counted."""


def encode(message: Message) -> bytes:
    """Return the header frame of a message.

    >>> decode(encode(KINDS["Bye"]()), 0)
    Bye()
    """
    values = [_plain(getattr(message, field.name)) for field in fields(message)]
    # A reason may quote anything, such as half a surrogate pair.
    packed: bytes = msgpack.packb(
        [PROTOCOL_VERSION, type(message).__name__, *values], unicode_errors="backslashreplace"
    )
    return packed


def decode(header: bytes | memoryview, payloads: int) -> Message:
    """Return the message in a header frame that came with so many payload frames.

    Raises WireError for anything that `encode` cannot have made.
    """
    most = LARGE_HEADER_BYTES.get(_told_kind(header), MAX_HEADER_BYTES)
    if len(header) > most:
        raise WireError(f"header of {len(header)} bytes, at most {most} are allowed")
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
    expected = {"none": 0, "one": 1}.get(message.PAYLOADS)
    if expected is None:
        expected = len(getattr(message, "items", ()))
    if payloads != expected:
        name = type(message).__name__
        raise WireError(f"{name} with {payloads} payload frames, it has {expected}")
    return message


def _told_kind(header: bytes | memoryview) -> str:
    """Return the kind that a header names, read off its first bytes; empty if it is not as ours.

    >>> _told_kind(encode(KINDS["Bye"]()))
    'Bye'
    """
    length = header[2] & 0x1F if len(header) > 2 and header[2] >> 5 == 0b101 else 0
    return bytes(header[3 : 3 + length]).decode("ascii", "replace")


def _message(parts: object) -> Message:
    if not isinstance(parts, list) or len(parts) < 2:
        raise WireError("a header is an array of version, kind and fields")
    version, name, *values = parts
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"the peer speaks protocol version {version!r:.{QUOTED}}, this side "
            f"{PROTOCOL_VERSION}: install the same counterpoise on both"
        )
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise WireError(f"no such kind of message: {name!r:.{QUOTED}}")
    message: Message = _record(kind)(values)
    return message


def _plain(value: object) -> object:
    if is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return value


@cache
def _record(kind: Any) -> Check:
    """Return a function that makes a record of the kind from its field values."""
    hints = get_type_hints(kind)
    checks = [_check(hints[field.name]) for field in fields(kind)]

    def make(values: object) -> Any:
        if not isinstance(values, list) or len(values) != len(checks):
            raise WireError(f"{kind.__name__} has {len(checks)} fields")
        try:
            return kind(*[check(value) for check, value in zip(checks, values, strict=True)])
        except WireError as error:
            raise WireError(f"{kind.__name__}: {error}") from error

    return make


def _check(hint: Any) -> Check:
    if is_dataclass(hint):
        kind: Any = hint
        return _record(kind)
    if hint in (int, str, bytes, bool):
        return _exactly(hint)
    return _tuple_of(_check(get_args(hint)[0]))


def _exactly(kind: type) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise WireError(f"{kind.__name__} expected, got {type(value).__name__}")
        if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise WireError(f"integer {value} does not fit into 64 bits")
        return value

    return check


def _tuple_of(element: Check) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, list):
            raise WireError(f"array expected, got {type(value).__name__}")
        return tuple([element(each) for each in value])

    return check
