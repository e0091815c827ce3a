"""Keep freed memory for the next payload.

By default the C library takes every large block fresh from the kernel and gives it back when it is
freed; touching fresh pages costs several times more than copying the payload into them. A process
that does nothing but move payloads keeps what it has while it is at work. One that has nothing to
do gives it back: the byte budget is of all processes together.

What is free at the upper end of a heap goes back only if it is the main heap; any other keeps up to
64 MiB of it. By default each thread that finds others at work gets a heap of its own, and ZeroMQ's
threads are those that take payloads in. So our processes have one heap for all threads.
"""

import ctypes
import math

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_BLOCK = 1 << 30
# Memory is given back after so many seconds without work, and again after so many more.
REST_S = 0.5


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large blocks; False where it is not glibc.

    For processes of our own (balancer, workers), never for a trainer.
    """
    kept = _set(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and _set(_M_TRIM_THRESHOLD, _LARGEST_BLOCK)
    return share_one_heap() and kept


def share_one_heap() -> bool:
    """Let all threads allocate from the main heap; False where the C library is not glibc.

    Heaps that there are by now stay, and are used again: call it before threads are started, and
    before the fork of processes that will start some.
    """
    return _set(_M_ARENA_MAX, 1)


def release_freed_memory() -> bool:
    """Give what is freed back to the kernel; False where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _set(option: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(option, value))


class IdleTrimmer:
    """Gives freed memory back when a process has had no payload in hand for a while.

    What was sent is freed when the network has taken it, which can be much later, and nobody says
    so: it looks as long as the process rests.
    """

    def __init__(self) -> None:
        self._due = math.inf

    def worked(self, now: float) -> None:
        """Note that there was one."""
        self._due = now + REST_S

    def look(self, now: float) -> None:
        """Give memory back if it is time to."""
        if now >= self._due:
            release_freed_memory()
            self._due = now + REST_S
