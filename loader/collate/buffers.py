"""Reuses the memory of batches when nothing refers to it any more.

A large batch costs its pages twice: once to be filled, once to be made (the kernel clears each new
page). A buffer that comes back saves the second. It must not come back early: a tensor that the
trainer keeps would change. So every use of a buffer is an array of its own, which is the base of
all views and tensors; when that array is freed, and only then, the buffer comes back.

Batches of one data set differ in size. So a buffer has room for twice the smallest of those that
may use it, and what a batch does not need of that is only an address: the kernel makes no page
before something is written to it. The buffer that came back last is taken first: it has pages, and
may still be in a cache.
"""

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
# Smaller buffers are made anew: that costs less than to wait for their ends.
SMALLEST_KEPT = 4096

Bytes = npt.NDArray[np.uint8]


class BufferPool:
    """Gives out byte arrays and takes back their memory; safe to use from several threads.

    `keep_bytes` is the most room kept for later; what comes back beyond that is freed.
    """

    def __init__(self, keep_bytes: int = 1 << 30) -> None:
        if keep_bytes < 0:
            raise ValueError(f"keep_bytes is {keep_bytes}, it must not be negative")
        self.keep_bytes = keep_bytes
        self._free: dict[int, deque[memoryview]] = {}
        self._returned: deque[memoryview] = deque()

    @property
    def kept_bytes(self) -> int:
        """Room that is kept to be used again, with and without pages."""
        self._sort_returned()
        return sum(size * len(memories) for size, memories in self._free.items())

    def take(self, nbytes: int) -> Bytes:
        """Return a writable array of nbytes bytes at a multiple of 64, contents undefined.

        Unless it is small, the memory is taken back when the array, its views and the tensors on
        them are gone.
        """
        if nbytes < 0:
            raise ValueError(f"a buffer cannot have {nbytes} bytes")
        if 0 < nbytes < SMALLEST_KEPT:
            return _aligned(nbytes)
        memory = self._memory(nbytes)
        # Not a view of an array: numpy would make that the base of views of a view.
        use: Bytes = np.frombuffer(memory, np.uint8, nbytes)
        watch = _Use(use, _end)
        watch.memory, watch.returned = memory, self._returned
        _in_use[id(watch)] = watch
        return use

    def _memory(self, nbytes: int) -> memoryview:
        if self._returned:
            self._sort_returned()
        size = rounded(nbytes)
        free = self._free.get(size)
        try:
            return free.pop() if free else _aligned(size).data
        except IndexError:  # another thread was faster
            return _aligned(size).data

    def _sort_returned(self) -> None:
        while self._returned:
            try:
                memory = self._returned.popleft()
            except IndexError:
                break
            free = self._free.get(len(memory))
            if free is None:
                free = self._free.setdefault(len(memory), deque())
            free.append(memory)
        self._free_surplus()

    def _free_surplus(self) -> None:
        kept_bytes = sum([size * len(kept) for size, kept in self._free.items()])
        surplus = kept_bytes - self.keep_bytes
        if surplus <= 0:  # as a rule
            return
        for size in sorted(self._free, reverse=True):
            kept = self._free[size]
            while kept and surplus > 0:
                kept.popleft()
                surplus -= size


class _Use(weakref.ref[Any]):
    """Refers to the array that all views of a buffer refer to; weakref.finalize costs three times.

    returned: where the memory goes when that array is gone.
    """

    __slots__ = ("memory", "returned")
    memory: memoryview
    returned: deque[memoryview]


# By their identity: an array has no hash.
_in_use: dict[int, _Use] = {}


def _end(use: Any) -> None:
    """Give a buffer's memory back: at any moment, within any other function."""
    del _in_use[id(use)]
    use.returned.append(use.memory)


def rounded(nbytes: int) -> int:
    """Return the room to take for `nbytes` bytes: the next power of two, at least 64.

    >>> rounded(0), rounded(1000), rounded(1025)
    (64, 1024, 2048)
    """
    return max(ALIGNMENT, 1 << max(nbytes - 1, 1).bit_length())


def _aligned(size: int) -> Bytes:
    room: npt.NDArray[Any] = np.empty(size + ALIGNMENT, np.uint8)
    # Many times faster than .ctypes.data
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start : start + size]
