"""Defines the messages of an arena's queue: a batch, a batch too large for a message, new slots.

One message is one packet of a unix socket, so that several senders can write to one socket without
a lock, and one that is killed leaves no half message. All are made and read on one machine, by the
same version of this file.

    BODY      body
    BODY_AT   token, slot, length: the body is in that slot
    SLOTS     token, new slots (number, size), retired slots; the descriptors come beside it

A body is a count of pieces, the length of the pickle, for each piece its slot (or -1) and length,
the pickle, and the bytes of the pieces without a slot.
"""

import struct
from collections.abc import Sequence
from typing import Any

BODY, BODY_AT, SLOTS = b"BAS"
NO_SLOT = -1
# Of a body in a message; a larger one goes into a slot.
MOST_INLINE = 16 << 10
# The kernel passes at most 253 descriptors with a message.
MOST_SLOTS = 128
# Longer messages than any of the above are never sent.
MOST_BYTES = MOST_INLINE + 64

_HEAD = struct.Struct("<BQIQ")  # kind, token, pieces, length of the pickle
_AT = struct.Struct("<BQqQ")
_PIECE = struct.Struct("<qQ")
_SLOTS = struct.Struct("<BQII")
_NUMBER = struct.Struct("<Q")


def body(
    token: int, pieces: Sequence[tuple[int, int]], pickled: memoryview, copied: Sequence[memoryview]
) -> list[Any]:
    """Return the parts of a body: pieces (slot, length), pickle, bytes of those without a slot."""
    head = _HEAD.pack(BODY, token, len(pieces), len(pickled))
    return [head, b"".join([_PIECE.pack(*piece) for piece in pieces]), pickled, *copied]


def read_body(data: memoryview) -> tuple[int, list[tuple[int, int]], memoryview, memoryview]:
    """Return a body's token, pieces (slot, length), pickle, and the bytes that follow it."""
    _, token, count, length = _HEAD.unpack_from(data)
    start = _HEAD.size
    if not count:
        return token, [], data[start : start + length], data[start + length :]
    stop = start + count * _PIECE.size
    pieces = list(_PIECE.iter_unpack(data[start:stop]))
    return token, pieces, data[stop : stop + length], data[stop + length :]


def body_in_slot(token: int, slot: int, length: int) -> bytes:
    """Return the message of a body that lies in a slot."""
    return _AT.pack(BODY_AT, token, slot, length)


def read_body_in_slot(data: memoryview) -> tuple[int, int, int]:
    """Return token, slot and length of a body in a slot."""
    _, token, slot, length = _AT.unpack_from(data)
    return token, slot, length


def slots(token: int, new: Sequence[tuple[int, int]], retired: Sequence[int]) -> bytes:
    """Return the message of new slots (number, size) and of retired ones."""
    head = _SLOTS.pack(SLOTS, token, len(new), len(retired))
    return head + b"".join(
        [*(_PIECE.pack(*slot) for slot in new), *(_NUMBER.pack(number) for number in retired)]
    )


def read_slots(data: memoryview) -> tuple[int, list[tuple[int, int]], list[int]]:
    """Return token, new slots (number, size), and retired ones."""
    _, token, new_count, retired_count = _SLOTS.unpack_from(data)
    middle = _SLOTS.size + new_count * _PIECE.size
    numbers = data[middle : middle + retired_count * _NUMBER.size]
    new_slots = list(_PIECE.iter_unpack(data[_SLOTS.size : middle]))
    return token, new_slots, [number for (number,) in _NUMBER.iter_unpack(numbers)]
