"""Turns a batch into a pickle and the bytes beside it, and back.

Memory of tensors and numpy arrays is not pickled: it stays where it is until it is copied into a
slot (or is there already). Tensors that share memory, share it afterwards, too. What is no ordinary
CPU tensor goes the way that multiprocessing and torch have for it.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .sender import OwnSlot, Sender

_DTYPES = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}, key=str)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_BYTES = torch.uint8
_Axes = tuple[int, ...]
# Types that numpy has, too, by torch's; it has none like bfloat16.
_NUMPYS = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32",
                 "float64", "complex64", "complex128")
}  # fmt: skip
# multiprocessing's and torch's own ways for sockets, locks, and all other tensors.
_REDUCERS = ForkingPickler(io.BytesIO()).dispatch_table


class Piece(NamedTuple):
    """Bytes beside the pickle; slot: where they lie already."""

    data: memoryview
    slot: OwnSlot | None


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

    def __init__(self, stream: io.BytesIO, sender: Sender | None, beside: _Beside) -> None:
        super().__init__(stream, 5, buffer_callback=beside.add)
        self._beside = beside
        self._sender = sender
        # The first tensor of each piece of memory, by its address, first and last byte.
        self._firsts: dict[tuple[int, int, int], Tensor] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how pickle makes a tensor again; NotImplemented leaves an object to pickle."""
        kind = type(obj)
        if kind is Tensor:
            if is_ordinary(obj):
                return self._tensor(obj)
            if obj.is_conj() or obj.is_neg():  # torch's way would lose it
                return self.reducer_override(obj.resolve_conj().resolve_neg())
        if kind is np.ndarray and not obj.flags.writeable:
            return obj.copy().__reduce_ex__(5)  # torch's way, too, makes it writable
        return NotImplemented

    def _tensor(self, tensor: Tensor) -> Any:
        shape, code = tuple(tensor.shape), _CODES[tensor.dtype]
        size = tensor.element_size()
        storage = tensor.untyped_storage()
        whole = storage.nbytes()
        steps = None if tensor.is_contiguous() else tensor.stride()
        start = int(tensor.storage_offset()) * size
        length = _span(tensor) * size
        begin, end = start, start + length
        if whole <= 2 * length:  # what else is in it travels too, and stays shared
            begin, end = 0, whole
        place = storage.data_ptr(), begin, end
        first = self._firsts.setdefault(place, tensor)
        if first is not tensor:
            return _sharing, (first, code, shape, steps, start - begin)
        data = torch.empty(0, dtype=_BYTES).set_(storage).numpy()
        if (begin, end) == (0, whole):
            self._beside.slot = None if self._sender is None else self._sender.find_slot(place[0])
        else:
            data = data[begin:end]
        buffer = pickle.PickleBuffer(data)  # type: ignore[arg-type]
        if steps is None and end - begin == length:
            return _filling, (buffer, code, shape)
        return _inside, (buffer, code, shape, steps, start - begin)


def is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor is bytes of this process' memory, and a shape."""
    is_as_shown = not tensor.is_conj() and not tensor.is_neg()
    return is_as_shown and is_plain(tensor) and tensor.numel() > 0


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, on the CPU, and needs no gradient."""
    is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    return is_dense and not tensor.requires_grad and tensor.device.type == "cpu"


def flat_bytes(tensor: Tensor) -> memoryview:
    """Return the contents of a plain tensor, in its order: its own memory where they lie so."""
    flat = tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()
    flat = flat.as_strided(flat.shape, (1,))  # of one element it may be any
    return flat.view(torch.uint8).numpy().data


def _span(tensor: Tensor) -> int:
    """Return how many elements lie between a tensor's first and its last, both included.

    >>> _span(torch.zeros(4, 6)[:, :2])
    20
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in sizes)


def _filling(buffer: Any, code: int, shape: _Axes) -> Tensor:
    return as_tensor(buffer, _DTYPES[code], shape)


def as_tensor(buffer: Any, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return a tensor of all of a writable buffer, which it keeps; RuntimeError for no shape."""
    known = _NUMPYS.get(dtype)
    if known is not None:  # in a third of the time
        return torch.from_numpy(np.ndarray(shape, known, buffer))
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def _inside(buffer: Any, code: int, shape: _Axes, steps: _Axes | None, start: int) -> Tensor:
    """Return a tensor in a buffer, from byte `start` on; steps: its strides, if it has gaps."""
    return _sharing(torch.frombuffer(buffer, dtype=_BYTES), code, shape, steps, start)


def _sharing(first: Tensor, code: int, shape: _Axes, steps: _Axes | None, start: int) -> Tensor:
    """Return a tensor as `_inside` does, in the memory of another."""
    empty = torch.empty(0, dtype=_DTYPES[code])
    storage, place = first.untyped_storage(), start // empty.itemsize
    if steps is None:
        return empty.set_(storage, place, shape)  # type: ignore[call-overload, no-any-return]
    return empty.set_(storage, place, shape, steps)


def pack(
    message: Any, sender: Sender | None, reducers: Mapping[Any, Any] = _REDUCERS
) -> tuple[memoryview, list[Piece]]:
    """Return an object's pickle, and the bytes beside it; raises what pickling raises.

    sender: whose tensors need not be copied; reducers: how to pickle what is no ordinary tensor.
    """
    stream, beside = io.BytesIO(), _Beside()
    packer = _Packer(stream, sender, beside)
    packer.dispatch_table = reducers
    packer.dump(message)
    return stream.getbuffer(), beside.pieces


def unpack(pickled: Any, pieces: Sequence[Any]) -> Any:
    """Return the object; `pieces` are writable buffers, which its tensors keep."""
    return pickle.loads(pickled, buffers=pieces)
