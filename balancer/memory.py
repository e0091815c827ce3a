"""Keep freed memory for the next payload.

By default the C library takes every large block fresh from the kernel and gives it back when it is
freed; touching fresh pages costs several times more than copying the payload into them. A process
that does nothing but move payloads keeps what it has while it is at work. One that has nothing to
do gives it back: the byte budget is of all processes together.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 1 << 30
REST_S = 0.5


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large blocks; False where it is not glibc.

    For processes of our own (balancer, workers), never for a trainer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _LARGEST_BLOCK)
    )


def release_freed_memory() -> bool:
    """Give what is freed back to the kernel; False where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


class Rest:
    """Gives freed memory back, once, when a process has had no payload in hand for a while."""

    def __init__(self) -> None:
        self._worked: float | None = None

    def worked(self, now: float) -> None:
        """Note that there was one."""
        self._worked = now

    def look(self, now: float) -> None:
        """Give memory back if the last one was long enough ago."""
        if self._worked is not None and now - self._worked > REST_S:
            self._worked = None
            release_freed_memory()
