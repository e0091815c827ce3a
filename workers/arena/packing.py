"""Turns a batch into a pickle and the bytes beside it, and back.

Memory of tensors and numpy arrays is not pickled: it stays where it is until it is copied into a
slot (or is there already). Tensors that share memory, share it afterwards, too. What is no ordinary
CPU tensor goes the way that multiprocessing and torch have for it.
"""

import io
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from .sender import OwnSlot, Sender

_DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_BYTES = torch.uint8
# multiprocessing's and torch's own ways for sockets, locks, and all other tensors.
_REDUCERS = ForkingPickler(io.BytesIO()).dispatch_table


class Piece:
    """Bytes beside the pickle; slot: where they lie already."""

    __slots__ = ("data", "slot")

    def __init__(self, data: memoryview, slot: OwnSlot | None) -> None:
        self.data = data
        self.slot = slot


class _Region:
    """The memory that one or several tensors of a batch lie in."""

    __slots__ = ("data", "slot")

    def __init__(self, data: Any, slot: OwnSlot | None) -> None:
        self.data = data
        self.slot = slot


class _Beside:
    """Collects what is left out of a pickle; slot: where the next bytes lie already."""

    __slots__ = ("pieces", "slot")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.slot: OwnSlot | None = None

    def add(self, buffer: pickle.PickleBuffer) -> bool:
        """Take the bytes of a buffer out of the pickle."""
        self.pieces.append(Piece(buffer.raw(), self.slot))
        self.slot = None
        return False


class _Packer(pickle.Pickler):
    """Pickles one object. It must not be in a cycle: its tensors would live until one is sought."""

    dispatch_table = _REDUCERS

    def __init__(self, stream: io.BytesIO, sender: Sender | None, beside: _Beside) -> None:
        super().__init__(stream, 5, buffer_callback=beside.add)
        self._beside = beside
        self._sender = sender
        self._regions: dict[tuple[int, int, int], _Region] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how pickle makes a tensor again; NotImplemented leaves an object to pickle."""
        kind = type(obj)
        if kind is torch.Tensor:
            if is_ordinary(obj):
                return self._tensor(obj)
            if obj.is_conj() or obj.is_neg():  # torch's way would lose it
                return self.reducer_override(obj.resolve_conj().resolve_neg())
        if kind is _Region:
            self._beside.slot = obj.slot
            return _memory, (pickle.PickleBuffer(obj.data),)
        if kind is np.ndarray and not obj.flags.writeable:
            return obj.copy().__reduce_ex__(5)  # torch's way, too, makes it writable
        return NotImplemented

    def _tensor(self, tensor: torch.Tensor) -> Any:
        shape, code = tuple(tensor.shape), _CODES[tensor.dtype]
        size = tensor.element_size()
        storage = tensor.untyped_storage()
        whole = storage.nbytes()
        contiguous = tensor.is_contiguous()
        steps = None if contiguous else tensor.stride()
        first = int(tensor.storage_offset()) * size
        length = _span(tensor) * size
        if whole <= 2 * length:  # what else is in it travels too, and stays shared
            return _tensor, (self._region(storage, 0, whole), code, shape, steps, first)
        return _tensor, (self._region(storage, first, first + length), code, shape, steps, 0)

    def _region(self, storage: torch.UntypedStorage, start: int, stop: int) -> _Region:
        address = storage.data_ptr()
        region = self._regions.get((address, start, stop))
        if region is None:
            data = torch.empty(0, dtype=_BYTES).set_(storage).numpy()
            whole = start == 0 and stop == storage.nbytes()
            slot = self._sender.slot_at(address) if whole and self._sender is not None else None
            region = _Region(data if whole else data[start:stop], slot)
            self._regions[address, start, stop] = region
        return region


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is bytes of this process' memory, and a shape."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.numel() > 0
    )


def _span(tensor: torch.Tensor) -> int:
    """Return how many elements lie between a tensor's first and its last, both included.

    >>> _span(torch.zeros(4, 6)[:, :2])
    20
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in sizes)


def _memory(buffer: Any) -> torch.Tensor:
    """Return bytes as a tensor that keeps them."""
    return torch.frombuffer(buffer, dtype=_BYTES)


def _tensor(
    memory: torch.Tensor,
    code: int,
    shape: tuple[int, ...],
    steps: tuple[int, ...] | None,
    first: int,
) -> torch.Tensor:
    """Return a tensor on `memory`, from its byte `first` on; steps: its strides, if it has gaps."""
    dtype = _DTYPES[code]
    if steps is None and first == 0:
        wanted = dtype.itemsize
        for length in shape:
            wanted *= length
        if wanted == memory.numel():
            return memory.view(dtype).view(shape)
    start = first // dtype.itemsize
    empty = torch.empty(0, dtype=dtype)
    storage = memory.untyped_storage()
    if steps is None:
        return empty.set_(storage, start, shape)  # type: ignore[call-overload, no-any-return]
    return empty.set_(storage, start, shape, steps)


def pack(thing: Any, sender: Sender | None) -> tuple[memoryview, list[Piece]]:
    """Return an object's pickle, and the bytes beside it; raises what pickling raises.

    sender: whose tensors need not be copied.
    """
    stream, beside = io.BytesIO(), _Beside()
    _Packer(stream, sender, beside).dump(thing)
    return stream.getbuffer(), beside.pieces


def unpack(pickled: Any, pieces: Sequence[Any]) -> Any:
    """Return the object; `pieces` are writable buffers, which its tensors keep."""
    return pickle.loads(pickled, buffers=pieces)
