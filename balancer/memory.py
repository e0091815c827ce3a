"""Keep freed memory for the next payload.

By default the C library takes every large block fresh from the kernel and gives it back when it is
freed; touching fresh pages costs several times more than copying the payload into them. A process
that does nothing but move payloads keeps what it has: its use is bounded by the byte budget.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BLOCK = 1 << 30


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
