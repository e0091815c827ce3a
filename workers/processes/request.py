"""Sends a job to the fork server: in an anonymous memory file, and as shared memory.

The file holds the trainer's environment (import path, folder, environment), then the job's pickle
and, each on its own, the bytes of its arrays and tensors. The supervisor maps the file privately
and the job's arrays are views of the mapping: a data set in memory is copied once, into the file,
and no worker adds to that unless it writes. Tensors in shared memory (`tensor.share_memory_()`)
stay shared with the trainer: their descriptors travel along.
"""

import mmap
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..codec.objects import ObjectPickler, decode_object, encode_object
from .pool_job import PoolJob, describe_error

_sharing_strategy: Any = torch.multiprocessing.get_sharing_strategy
_attach_storage: Any = torch.UntypedStorage._new_shared_fd_cpu  # type: ignore[attr-defined]
# A message carries at most 253 descriptors.
MAX_SHARED = 240
_received: list[int] = []  # the shared descriptors of the request being read


def write_request(job: PoolJob) -> tuple[int, list[int]]:
    """Return descriptors to be closed by the caller: the file's, and those of shared tensors.

    Raises TypeError for a job that cannot be pickled.
    """
    shared: list[int] = []
    try:
        sizes, buffers = encode_object(job, lambda *streams: _JobPickler(shared, *streams))
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        _close(shared)
        raise TypeError(
            f"cannot send this to the worker processes: {describe_error(error)}; define it at the "
            "top level of a module, or pass multiprocessing_context='fork'"
        ) from error
    front = pickle.dumps((environment(), sizes))
    return memory_file(front, bytes(-len(front) % mmap.PAGESIZE), *buffers), shared


def read_request(descriptor: int, shared: Sequence[int]) -> PoolJob:
    """Adopt the trainer's path, folder and environment; return its job, close the descriptors."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    surroundings, sizes = pickle.load(memory)
    adopt(surroundings)
    start = -(-memory.tell() // mmap.PAGESIZE) * mmap.PAGESIZE
    _received[:] = shared
    job = decode_object(sizes, memoryview(memory)[start:])
    _close([descriptor, *shared])
    if not isinstance(job, PoolJob):
        raise TypeError(f"expected a PoolJob, got {type(job).__name__}")
    return job


def memory_file(*parts: Any) -> int:
    """Return an anonymous file with these bytes; it ends when no process has it open."""
    descriptor = os.memfd_create("counterpoise")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.writelines(parts)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class _JobPickler(ObjectPickler):
    def __init__(self, shared: list[int], *streams: Any) -> None:
        super().__init__(*streams)
        self._shared = shared
        self._numbers: dict[int, int] = {}  # storage address -> place in shared

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_shared(value):
            place = (tuple(value.shape), value.stride(), value.storage_offset())
            return _shared_tensor, (*self._storage(value), value.dtype, *place)
        return super().reducer_override(value)

    def _storage(self, tensor: torch.Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage.data_ptr())
        if number is None:
            if len(self._shared) == MAX_SHARED:
                raise ValueError(f"more than {MAX_SHARED} tensors in shared memory")
            descriptor, _ = storage._share_fd_cpu_()
            number = self._numbers[storage.data_ptr()] = len(self._shared)
            self._shared.append(os.dup(descriptor))
        return number, storage.nbytes()


def _is_shared(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_shared()  # type: ignore[no-untyped-call]
        and not tensor.requires_grad
        and _sharing_strategy() == "file_descriptor"
    )


def _shared_tensor(
    number: int,
    nbytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    storage = _attach_storage(_received[number], nbytes)
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


def environment() -> dict[str, Any]:
    """Return this process' import path, folder and environment."""
    path = [str(entry) for entry in sys.path]
    return {"sys_path": path, "dir": str(Path.cwd()), "environ": dict(os.environ)}


def adopt(surroundings: dict[str, Any]) -> None:
    """Make another process' `environment()` this process' own."""
    sys.path[:] = surroundings["sys_path"]
    os.chdir(surroundings["dir"])
    os.environ.clear()
    os.environ.update(surroundings["environ"])


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
