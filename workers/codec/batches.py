"""Encodes a batch as frames, and decodes them to the same tree: no pickle, and hardly a copy.

A batch is any nesting of dicts, lists and tuples of tensors, numpy's arrays and scalars, text,
bytes, numbers and None; a list of samples is one, too. Its frames are

    head       the header's length in 8 bytes, the header, and what is small, at steps of 64
    frame 1..  what has SMALL bytes or more, each by itself, in the order of the tree

The header is the tree in msgpack. Numbers, short text and None are themselves; all else is a list
that begins with its kind. Of contents it has type and size, and not where they lie: a reader walks
the tree, and checks each size against the frames before anything is made of it.
"""

import math
import reprlib
from collections.abc import Container, Sequence
from typing import Any

import msgpack
import numpy as np
import torch

from ..arena.packing import as_tensor, flat_bytes, is_plain
from .contents import (
    DTYPES,
    MAX_DIMENSIONS,
    Buffer,
    CodecError,
    aligned,
    aligned_bytes,
    is_shape,
    padded,
    read_value,
    view_bytes,
)

SMALL = 1024  # bytes
SHORT = 256  # characters of text that is in the header
MAX_HEADER_BYTES = 4 << 20  # of which msgpack makes at most 80 times as much
MAX_FRAMES = 65_537
MAX_DEPTH = 32
_FRONT = 8  # bytes of the header's length
# A quantized tensor (torch.qint8) has scales beside its bytes.
_TENSORS = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}
_NAMES = {dtype: name for name, dtype in _TENSORS.items()}
# Lists of so many numbers of one kind travel as arrays: a tokenizer's are as long as a text.
_LEAST_NUMBERS = 8
_NUMBERS: dict[type, str] = {bool: "|b1", int: "<i8", float: "<f8"}
_BYTES = DTYPES["|u1"]
_Path = tuple[str | int, ...]


def encode_batch(batch: object) -> list[Buffer]:
    """Return a batch's frames, the head first; large ones are views of the batch's own memory.

    Raises TypeError, which names the field, for what cannot travel, and ValueError for a tree that
    is too large.

    >>> (head,) = encode_batch({"label": 3, "text": "cat"})
    >>> decode_batch([head])
    {'label': 3, 'text': 'cat'}
    """
    writer = _Writer()
    header = msgpack.packb(writer.node(batch, ()), unicode_errors="surrogatepass")
    if len(header) > MAX_HEADER_BYTES or len(writer.large) >= MAX_FRAMES:
        raise ValueError(
            f"a batch with {len(header)} bytes of structure and {len(writer.large)} large arrays "
            f"cannot travel, at most {MAX_HEADER_BYTES} and {MAX_FRAMES - 1} may be: give arrays "
            "in place of nested lists"
        )
    parts = [len(header).to_bytes(_FRONT, "little") + header, *writer.small]
    return [memoryview(bytearray().join(aligned(parts))), *writer.large]


def list_frames(head: Any, sizes: Sequence[int], fields: Container[str] | None) -> list[int]:
    """Return the numbers of the frames that these fields of a batch need, 0 (the head) first.

    sizes: the bytes of all frames, as they were announced; fields: as in decode_batch, which raises
    CodecError likewise.
    """
    reader = _Reader(head, sizes, None)
    reader.read(fields)
    return [0, *reader.needed]


def decode_batch(frames: Sequence[Any], fields: Container[str] | None = None) -> Any:
    """Return the batch in frames; of one that is a dict only these fields, None for all.

    frames: contiguous buffers, ZeroMQ's too, None where list_frames does not name one. Tensors and
    arrays are writable views of them; a frame that is read-only, or not at a multiple of 8 bytes,
    is copied. Raises CodecError for anything that encode_batch cannot have made.
    """
    sizes = [-1 if f is None else memoryview(getattr(f, "buffer", f)).nbytes for f in frames]
    if not sizes or sizes[0] < 0:
        raise CodecError("a batch has at least a head, and none came")
    return _Reader(frames[0], sizes, frames).read(fields)


class _Writer:
    """Makes the header's tree of a batch, and lists the contents that are beside it."""

    def __init__(self) -> None:
        self.small: list[Buffer] = []
        self.large: list[Buffer] = []

    def node(self, value: Any, path: _Path) -> Any:
        """Return what stands for a value in the tree; path: the keys that lead to it."""
        kind = type(value)
        if value is None or kind in (bool, float) or (kind is str and len(value) < SHORT):
            return value
        if kind is int and -(1 << 63) <= value < 1 << 63:
            return value
        if kind in (str, bytes):
            content = value if kind is bytes else value.encode("utf-8", "surrogatepass")
            self._add(content)
            return [kind.__name__, len(content)]
        if kind is torch.Tensor:
            return self._tensor(value, path)
        if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            return self._array(value, path)
        if kind is int:
            raise _refusal(path, f"an integer of {value.bit_length()} bits")
        if kind not in (dict, list, tuple):
            raise _refusal(path, f"of type {kind.__name__}")
        if len(path) == MAX_DEPTH:
            raise _refusal(path, f"nested more than {MAX_DEPTH} deep")
        if kind is dict:
            if odd := [key for key in value if type(key) not in (str, int)]:
                raise _refusal(path, f"a dict with {reprlib.repr(odd[0])} among its keys")
            pairs = ((key, self.node(value[key], (*path, key))) for key in value)
            return ["dict", *(part for pair in pairs for part in pair)]
        kinds = {*map(type, value)} if kind is list and len(value) >= _LEAST_NUMBERS else ()
        name = _NUMBERS.get(*kinds) if len(kinds) == 1 else None
        if name and (numbers := np.array(value)).dtype.str == name:  # else they are larger
            return ["numbers", *self._array(numbers, path)[1:]]
        nodes = (self.node(member, (*path, place)) for place, member in enumerate(value))
        return [kind.__name__, *nodes]

    def _tensor(self, tensor: torch.Tensor, path: _Path) -> list[Any]:
        if not is_plain(tensor):
            kind = f"a {'nested ' * tensor.is_nested}tensor of {tensor.dtype}, {tensor.layout}, on"
            grad = ", that requires grad" * tensor.requires_grad
            raise _refusal(path, f"{kind} {tensor.device}{grad}")
        shape = _check_shape(tensor, path)
        self._add(flat_bytes(tensor))
        return ["tensor", _NAMES[tensor.dtype], shape]

    def _array(self, value: Any, path: _Path) -> list[Any]:
        if DTYPES.get(value.dtype.str) != value.dtype:
            raise _refusal(path, f"an array of {value.dtype}")
        shape = _check_shape(value, path)
        self._add(view_bytes(np.asarray(value)))
        return ["scalar" if isinstance(value, np.generic) else "array", value.dtype.str, shape]

    def _add(self, content: Buffer) -> None:
        (self.small if len(content) < SMALL else self.large).append(content)


def _check_shape(value: Any, path: _Path) -> list[int]:
    if not is_shape(shape := [*value.shape]):
        raise _refusal(path, f"of shape {tuple(shape)}")
    return shape


def _refusal(path: _Path, fault: str) -> TypeError:
    where = "".join(f"[{reprlib.repr(key)}]" for key in path)
    return TypeError(
        f"batch{where} is {fault}, and what travels are dicts (keys: text and integers), lists, "
        "tuples, text, bytes, numbers of 64 bits, None, and dense CPU tensors and arrays of "
        f"numbers, of at most {MAX_DIMENSIONS} axes: give such from the transform or collate_fn"
    )


class _Reader:
    """Walks the tree in a head; of frames that are None only the sizes are known.

    needed: the numbers of the frames of the fields that were asked for.
    """

    def __init__(self, head: Any, sizes: Sequence[int], frames: Sequence[Any] | None) -> None:
        whole = writable(head)
        end = _FRONT + int.from_bytes(whole[:_FRONT], "little")
        if len(whole) != sizes[0] or not _FRONT < end <= min(len(whole), MAX_HEADER_BYTES + _FRONT):
            raise CodecError(f"a head of {len(whole)} bytes has no header that ends at {end}")
        try:
            self._tree = msgpack.unpackb(whole[_FRONT:end], unicode_errors="surrogatepass")
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"its header is none: {type(error).__name__}") from None
        self._head, self._end = whole, end
        self._sizes, self._frames = sizes, frames
        self._is_wanted = True
        self._number = 1
        self.needed: list[int] = []

    def read(self, fields: Container[str] | None) -> Any:
        """Return the batch, or these fields; CodecError where the frames are not those of it."""
        batch = self._value(self._tree, 0, fields)
        if (self._end, self._number) != (len(self._head), len(self._sizes)):
            of, here = (self._number, self._end), (len(self._sizes), len(self._head))
            raise CodecError(f"frames of a batch, and bytes of its head, are {here}, not {of}")
        return batch

    def _value(self, node: Any, depth: int, fields: Container[str] | None = None) -> Any:
        # msgpack has made no other types; lists that say another kind or form are refused below
        if node is None or type(node) in (bool, int, float, str):
            return node
        match node:
            case ["dict" | "list" | "tuple" as kind, *parts] if depth < MAX_DEPTH:
                if kind == "dict":
                    return self._dict(parts, depth + 1, fields)
                values = [self._value(part, depth + 1) for part in parts]
                return values if kind == "list" else tuple(values)
            case ["str" | "bytes" as kind, length]:
                return self._content("text" if kind == "str" else kind, _BYTES, [length])
            case ["tensor", str() as name, [*shape]] if name in _TENSORS:
                return self._content("tensor", _TENSORS[name], shape)
            case ["array" | "scalar" | "numbers" as kind, str() as name, [*shape]] if (
                name in DTYPES
            ):
                return self._content(kind, DTYPES[name], shape)
        raise CodecError(f"no such value, or too deep: {reprlib.repr(node)}")

    def _dict(self, parts: list[Any], depth: int, fields: Container[str] | None) -> dict[Any, Any]:
        keys, nodes = parts[::2], parts[1::2]
        is_dict = len(keys) == len(nodes) and all(type(key) in (str, int) for key in keys)
        if not is_dict or len({*keys}) < len(keys):
            raise CodecError(f"no such dict, or a key comes twice: {reprlib.repr(keys)}")
        values: dict[Any, Any] = {}
        is_wanted = self._is_wanted
        for key, node in zip(keys, nodes, strict=True):
            self._is_wanted = is_wanted and (fields is None or key in fields)
            value = self._value(node, depth)
            if self._is_wanted:
                values[key] = value
        self._is_wanted = is_wanted
        return values

    def _content(self, kind: str, dtype: Any, shape: list[Any]) -> Any:
        """Return a tensor, array, text, ...; None where it is not asked for."""
        # as a list of lists, what is empty could be of any length
        axes = {"scalar": 0, "numbers": 1}.get(kind, len(shape))
        if len(shape) != axes or not is_shape(shape):
            raise CodecError(f"no such shape: {reprlib.repr(shape)}")
        content = self._take(math.prod(shape) * dtype.itemsize)
        if content is None:
            return None
        if kind == "tensor":
            is_empty = not len(content)
            return torch.empty(shape, dtype=dtype) if is_empty else as_tensor(content, dtype, shape)
        value: Any = read_value(kind, dtype, tuple(shape), content)
        if kind == "numbers":
            return value.tolist()
        return value[()] if kind == "scalar" else value

    def _take(self, nbytes: int) -> memoryview | None:
        """Return the next contents, of which the header says how large they are."""
        number = self._number
        if nbytes < SMALL:  # in the head, at the next step
            start = padded(self._end) if nbytes else self._end
            self._end = start + nbytes
            if self._end > len(self._head):
                raise CodecError(f"contents end at byte {self._end} of {len(self._head)}")
            return self._head[start : self._end] if self._is_wanted else None
        self._number += 1
        if number >= len(self._sizes) or self._sizes[number] not in (-1, nbytes):
            raise CodecError(f"frame {number} is to have {nbytes} bytes, and has not, or is none")
        if self._is_wanted:
            self.needed.append(number)
        if not self._is_wanted or self._frames is None:
            return None
        if self._frames[number] is None:
            raise CodecError(f"frame {number} is needed, and was left out")
        return writable(self._frames[number])


def writable(frame: Any) -> memoryview:
    """Return the bytes of a frame as writable memory: a copy, where they are not."""
    buffer = aligned_bytes(frame)
    return memoryview(bytearray(buffer)) if buffer.readonly else buffer
