"""Memory for a sample's largest array where its payload is going to lie, so that it is not copied.

Pixels are megabytes that are resized into new memory, and would then be copied into lent memory:
both take as long as a sixth of decoding and resizing them. So a transform may ask for memory first,
and gets room for the array and what usually comes behind it in a payload. If the payload begins
with that array, only the rest is copied; if not, or if there is no room, all of it is, as ever.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...balancer.protocol.messages import PayloadHandle

# A smaller array is copied in less time than room for it is made.
LEAST_BYTES = 64 << 10


def with_rest(nbytes: int) -> int:
    """Return the room to reserve for an array of `nbytes`, and for what comes behind it.

    What is not needed is given back; where it is too little, the payload is copied.

    >>> with_rest(0), with_rest(8 << 20) >> 20
    (65536, 9)
    """
    return nbytes + nbytes // 8 + LEAST_BYTES


class Room:
    """Lent memory for a payload that is not announced yet, which this process may write to."""

    __slots__ = ("handle", "memory")

    def __init__(self, handle: PayloadHandle, memory: memoryview) -> None:
        self.handle = handle
        self.memory = memory

    def array(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the memory of the payload's first array: uint8 (nbytes,)."""
        return np.frombuffer(self.memory[:nbytes], np.uint8)

    def write(self, buffers: Sequence[Any]) -> None:
        """Write a payload, given as buffers, of at most this size."""
        at = 0
        for buffer in buffers:
            self.memory[at : at + len(buffer)] = buffer
            at += len(buffer)

    def complete(self, buffers: Sequence[Any]) -> bool:
        """Write the rest of a payload that begins here already; return whether it does, and fits.

        No other of its buffers may lie here: it would be written over while it is read.
        """
        first, *others = map(_address, buffers)
        begin, end = _address(self.memory), _address(self.memory) + len(self.memory)
        if first != begin or any(begin <= each < end for each in others):
            return False
        if sum(map(len, buffers)) > len(self.memory):
            return False
        Room(self.handle, self.memory[len(buffers[0]) :]).write(buffers[1:])
        return True


def _address(buffer: Any) -> int:
    # Many times faster than .ctypes.data
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address
