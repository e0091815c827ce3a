"""Keeps freed memory for the next image while a worker works, and returns it when it is idle.

By default the C library gets every large block from the kernel and returns it when it is freed;
touching fresh pages costs several times more than writing an image into them. Only the main heap
returns free memory at its upper end, so all threads of such a process have one heap.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_BLOCK = 1 << 30
_libc = ctypes.CDLL(None)


def keep_freed_memory() -> bool:
    """Tell the C library to reuse large blocks; False where it is not glibc.

    For workers, never for a trainer.
    """
    is_reused = _set(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and _set(_M_TRIM_THRESHOLD, _LARGEST_BLOCK)
    return share_one_heap() and is_reused


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
