"""Keeps freed memory for the next payload while a process works, and returns it when idle.

By default the C library gets every large block from the kernel and returns it when it is freed;
touching fresh pages costs several times more than copying the payload into them. A process that
only moves payloads keeps its memory while it is at work, and returns it when it is idle, because
the byte budget is shared by all processes.

Only the main heap returns free memory at its upper end; any other keeps up to 64 MiB of it. By
default a thread that finds the heap in use gets one of its own, and ZeroMQ's threads are the ones
that receive payloads. Therefore our processes have one heap for all threads.
"""

import ctypes
import math

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_BLOCK = 1 << 30
_libc = ctypes.CDLL(None)
# Seconds without a payload after which memory is returned, and after which it is returned again.
IDLE_S = 0.5


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large blocks; False where it is not glibc.

    For processes of our own (balancer, workers), never for a trainer.
    """
    kept = _set(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and _set(_M_TRIM_THRESHOLD, _LARGEST_BLOCK)
    return share_one_heap() and kept


def share_one_heap() -> bool:
    """Make all threads allocate from the main heap; False where the C library is not glibc.

    Heaps that exist already stay in use: call this before threads are started, and before forking
    processes that will start some.
    """
    return _set(_M_ARENA_MAX, 1)


def release_freed_memory() -> bool:
    """Return freed memory to the kernel; False where the C library is not glibc."""
    trim = getattr(_libc, "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _set(option: int, value: int) -> bool:
    mallopt = getattr(_libc, "mallopt", None)
    return mallopt is not None and bool(mallopt(option, value))


class IdleTrimmer:
    """Returns freed memory to the kernel when a process has had no payload for a while.

    A payload that was sent is freed when the network has taken it, possibly much later and without
    notice, so the trimmer repeats itself while the process is idle.
    """

    def __init__(self) -> None:
        self._due = self._idle_s = math.inf
        self._is_trimmed = False

    def note_payload(self, now: float, idle_s: float = IDLE_S) -> None:
        """Note that a payload was received or sent; memory is kept for `idle_s` after it.

        Of several since memory was returned the shortest time counts: theirs may be freed by now.
        """
        if self._is_trimmed:
            self._idle_s, self._is_trimmed = math.inf, False
        self._idle_s = min(self._idle_s, idle_s)
        self._due = now + self._idle_s

    def trim_if_idle(self, now: float) -> bool:
        """Return memory to the kernel if it is time to; return whether it was."""
        if now < self._due:
            return False
        release_freed_memory()
        self._is_trimmed = True
        self._due = now + self._idle_s
        return True
