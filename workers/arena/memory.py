"""Makes sealed memory files and maps them, without keeping a descriptor.

A slot is one memory file (memfd): it has no name, so nothing is left in /dev/shm, and the kernel
frees it with its last mapping, however the processes ended. It is sealed against being resized, so
a reader cannot be sent SIGBUS by a shrunk file. Its pages are allocated when it is made: too little
memory is an OSError there, not a crash at the first write.

Python's own mmap keeps a descriptor for each mapping, and a trainer that keeps a thousand batches
would run out of them. So the C library's is called.
"""

import array
import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import socket
import sys
from typing import Any

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


def make_memory(size: int) -> int:
    """Return the descriptor of a new sealed memory file; OSError where there is no memory for it.

    size: a positive number of bytes, in whole pages.
    """
    descriptor = os.memfd_create("counterpoise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Mapping:
    """A memory file in this process' memory, readable and writable; unmapped when it is deleted.

    A forked child does not get it unless `inherit` was called: a child that lives on would keep
    the memory of a loader that is closed.
    """

    __slots__ = ("__weakref__", "_process", "address", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes of a file, with all their pages; OSError where that fails."""
        self.address = 0
        self.size, self._process = size, os.getpid()
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _POPULATE
        self.address = _libc.mmap(None, size, access, flags, descriptor, 0)
        if self.address == _FAILED:
            number, self.address = ctypes.get_errno(), 0
            raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
        _libc.madvise(self.address, size, mmap.MADV_DONTFORK)

    def inherit(self) -> None:
        """Map this memory also in children that are forked from now on."""
        _libc.madvise(self.address, self.size, mmap.MADV_DOFORK)

    def bytes(self, length: int) -> Any:
        """Return the first `length` bytes as an object that exports them; it does not keep them.

        A ctypes array: whatever is made of its buffer (memoryviews, arrays, tensors, views of
        views) refers to this very object, which is not so for slices of a memoryview.
        """
        return (ctypes.c_char * length).from_address(self.address)

    def __del__(
        self, _getpid: Any = os.getpid, _finalizing: Any = sys.is_finalizing,
        _unmap: Any = _libc.munmap,
    ) -> None:  # fmt: skip
        # Not in a child, where another thing may be at this address; nor while the interpreter
        # ends, when tensors on the memory may still be read. There is no address where a handler
        # raised before anything was mapped.
        if getattr(self, "address", 0) and self._process == _getpid() and not _finalizing():
            _unmap(self.address, self.size)


@functools.cache
def find_memory_file_fault() -> str:
    """Return why memory files cannot be had here, "" if they can."""
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return f"sealed memory files need Linux, and this is {sys.platform}"
    try:
        descriptor = make_memory(PAGE)
    except OSError as error:
        return f"a memory file cannot be made: {error}"
    try:
        Mapping(descriptor, PAGE)
    except OSError as error:
        return str(error)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return ""


def received_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message of a unix socket, as recvmsg gives them."""
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)
