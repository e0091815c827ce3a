"""Defines what a worker and a rank tell each other directly: packets of a SOCK_SEQPACKET socket.

    rank to worker:  its name as a peer of the balancer, once; then
                     ANSWER    serials that it does not read any more, times two, and one more where
                               a child of it may
    worker to rank:  KNOWN     the first serial to come, and some of those that are there
                     SEGMENTS  number and size of segments; the descriptors come beside it
                     RETIRED   numbers of segments that are not used any more
                     ASK       the oldest serial that is there, and serials asked about

The last KNOWN packet after the rank's name has no serials. Both sides run the same version of this
file, on one machine; what is cut short or unknown is an error.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

KNOWN, SEGMENTS, RETIRED, ASK, ANSWER = b"KSRAN"
# Serials in a packet, and descriptors beside one: the kernel passes at most 253.
MOST_SERIALS = 4096
MOST_SEGMENTS = 64
MOST_BYTES = 8 * MOST_SERIALS + 64

_HEAD = struct.Struct("<BQ")
_NUMBER = struct.Struct("<Q")


def packet(kind: int, first: int, numbers: Iterable[int]) -> bytes:
    """Return one packet."""
    listed = tuple(numbers)
    return _HEAD.pack(kind, first) + struct.pack(f"<{len(listed)}Q", *listed)


def packets(kind: int, first: int, numbers: Sequence[int]) -> Iterator[bytes]:
    """Return the packets, none without numbers."""
    for start in range(0, len(numbers), MOST_SERIALS):
        yield packet(kind, first, numbers[start : start + MOST_SERIALS])


def read_packet(data: bytes | memoryview) -> tuple[int, int, list[int]]:
    """Return a packet's kind, its first number, and the others; ValueError for what is none."""
    size = len(data) - _HEAD.size
    if size < 0 or size % _NUMBER.size:
        raise ValueError(f"a packet has {len(data)} bytes")
    kind, first = _HEAD.unpack_from(data)
    return kind, first, list(struct.unpack_from(f"<{size // _NUMBER.size}Q", data, _HEAD.size))
