"""Encodes any Python object by pickle, with the bytes of arrays and tensors beside the pickle.

Pickle's protocol 5 hands out the buffers of contiguous numpy arrays; here torch tensors join in:
a plain dense CPU tensor travels as the bytes of its elements, in the order they lie in memory (a
channels-last tensor stays one), an expanded or sliced one as a contiguous copy. Everything else,
tensors that need gradients among it, is pickled as usual. Only for use inside one machine: reading
a pickle runs what its writer wanted.
"""

import io
import pickle
import reprlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .fields import Buffer, CodecError, aligned, padded

MAX_BUFFERS = 1 << 16


class ObjectPickler(pickle.Pickler):
    """Writes a pickle to a stream, and passes the buffers that go beside it to a callback."""

    def __init__(self, stream: io.BytesIO, hand_out: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=hand_out)

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is pickled."""
        if type(value) is torch.Tensor and is_plain(value):
            return _reduced(value)
        return NotImplemented


def encode_object(
    value: object,
    pickler: Callable[[io.BytesIO, Callable[[Any], Any]], pickle.Pickler] = ObjectPickler,
) -> tuple[list[int], list[Buffer]]:
    """Return the sizes of the pickle and its buffers, and the buffers that make the payload.

    Raises what pickle raises for what it cannot pickle.
    """
    stream, held = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler(stream, held.append).dump(value)
    contents = [stream.getbuffer(), *(buffer.raw() for buffer in held)]
    return [len(content) for content in contents], aligned(contents)


def decode_object(sizes: object, payload: memoryview) -> object:
    """Return the object; its arrays and tensors are views of the payload, writable if it is."""
    parts = list[memoryview]()
    start = end = 0
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= MAX_BUFFERS:
        raise CodecError(f"an object has between 1 and {MAX_BUFFERS} buffers")
    for size in sizes:
        if type(size) is not int or size < 0:
            raise CodecError(f"no such size: {reprlib.repr(size)}")
        if size:
            start = padded(end)
            end = start + size
        parts.append(payload[start : start + size])
    if end != len(payload):
        raise CodecError(f"the buffers end at byte {end}, the payload has {len(payload)}")
    return pickle.loads(parts[0], buffers=parts[1:])


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is its elements in this process' memory, and nothing else."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_nested
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _reduced(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    shape = tuple(tensor.shape)
    if tensor.numel() == 0:
        return _empty_tensor, (shape, tensor.dtype)
    strides = tensor.stride() if _is_permuted(tensor) else None
    dense = tensor if strides else tensor.contiguous()
    flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
    return tensor_on, (pickle.PickleBuffer(flat.numpy().data), tensor.dtype, shape, strides)


def _is_permuted(tensor: torch.Tensor) -> bool:
    """Return whether the elements are contiguous in memory, but not in C order."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda d: (-strides[d], d))
    return not tensor.is_contiguous() and tensor.permute(order).is_contiguous()


def _strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in reversed(range(len(shape))):
        strides[dimension] = step
        step *= shape[dimension]
    return tuple(strides)


def _empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def tensor_on(
    buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> torch.Tensor:
    """Return a tensor whose memory is the buffer."""
    view = memoryview(buffer)
    if view.readonly:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # nobody is told to write to it
            flat = torch.frombuffer(view, dtype=dtype)
    else:
        flat = torch.frombuffer(view, dtype=dtype)
    return flat.as_strided(shape, strides or _strides_of(shape))
