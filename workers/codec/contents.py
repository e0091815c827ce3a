"""The contents of arrays, text and bytes in frames: how they lie there, and what is one of them."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes: contents begin at a multiple
MAX_DIMENSIONS = 8
MAX_EXTENT = 1 << 40
# Tensors are used where they arrived, unless they would lie across machine words.
_WORD_BYTES = 8
# one width, one byte order (the machines' own, little-endian)
DTYPES = {
    np.dtype(name).str: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
Buffer = bytes | memoryview


class CodecError(ValueError):
    """Frames that no encoder can have made."""


def padded(size: int) -> int:
    """Return the next multiple of 64."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(contents: Iterable[Buffer]) -> list[Buffer]:
    """Return the buffers that are not empty, with zeros between them: each starts at 64 * n."""
    buffers: list[Buffer] = []
    end = 0
    for content in contents:
        if len(content):
            if gap := padded(end) - end:
                buffers.append(bytes(gap))
            buffers.append(content)
            end += gap + len(content)
    return buffers


def view_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the array's elements in C order as bytes; copies only if they are in another order."""
    try:
        return array.data.cast("B")
    except TypeError:  # it is empty, of complex numbers, or in another order
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def is_shape(shape: list[Any]) -> bool:
    """Return whether a list is a shape that is read; strides of an empty one fit 64 bits, too."""
    lengths = (type(length) is int and 0 <= length <= MAX_EXTENT for length in shape)
    is_list = len(shape) <= MAX_DIMENSIONS and all(lengths)
    return is_list and math.prod(length or 1 for length in shape) < 1 << 59


def read_value(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: memoryview) -> object:
    """Return bytes or text in as many bytes, or else an array on them; CodecError if it is none."""
    if kind not in ("bytes", "text"):  # an empty one is new, and the caller's
        return np.ndarray(shape, dtype, data) if len(data) else np.empty(shape, dtype)
    if kind == "bytes":
        return bytes(data)
    try:
        return str(data, "utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise CodecError(f"not text: {error}") from error


def aligned_bytes(frame: Any) -> memoryview:
    """Return the memory of a frame: ZeroMQ's own, or a buffer's; copied if not aligned.

    >>> bytes(aligned_bytes(bytearray(b"pixels")))
    b'pixels'
    """
    whole = memoryview(getattr(frame, "buffer", frame))
    view = whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")
    if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % _WORD_BYTES:
        return memoryview(bytearray(view))
    return view
