"""Encodes any Python object as frames, for a trainer that has started the worker on its own host.

What batches.py encodes has its form. All else is pickled, with the contents of tensors and arrays
as frames of their own; such a head begins with what can be no length of a header, so that
decode_batch refuses it: pickles that come over a network are never read.
"""

import pickle
from collections.abc import Container, Sequence
from io import BytesIO
from typing import Any

import torch

from ..arena.packing import as_tensor, flat_bytes, is_plain
from .batches import MAX_FRAMES, SMALL, decode_batch, encode_batch, list_frames, writable
from .contents import Buffer

_PICKLED = b"\xff" * 8


def encode_local(batch: object) -> list[Buffer]:
    """Return a batch's frames; raises what pickling it raises.

    >>> decode_local(encode_local({"when": slice(1, 2)}))
    {'when': slice(1, 2, None)}
    """
    try:
        return encode_batch(batch)
    except (TypeError, ValueError):
        head, large = BytesIO(), list[Buffer]()

        def stays(content: pickle.PickleBuffer) -> bool:
            is_apart = len(content.raw()) >= SMALL and len(large) < MAX_FRAMES - 1
            large.extend([content.raw()] * is_apart)
            return not is_apart

        head.write(_PICKLED)
        _Pickler(head, protocol=5, buffer_callback=stays).dump(batch)
        return [head.getbuffer(), *large]


def decode_local(frames: Sequence[Any], fields: Container[str] | None = None) -> Any:
    """Return what encode_local was given; of a dict that is not pickled only these fields.

    frames: as in decode_batch.
    """
    head = memoryview(getattr(frames[0], "buffer", frames[0]))
    if head[: len(_PICKLED)] != _PICKLED:
        return decode_batch(frames, fields)
    return pickle.loads(head[len(_PICKLED) :], buffers=map(writable, frames[1:]))


def list_local_frames(head: Any, sizes: Sequence[int], fields: Container[str] | None) -> list[int]:
    """Return the numbers of the frames that these fields need, as list_frames: of a pickle all."""
    if memoryview(getattr(head, "buffer", head))[: len(_PICKLED)] == _PICKLED:
        return [*range(len(sizes))]
    return list_frames(head, sizes, fields)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Give the contents of a plain tensor as a buffer: torch would copy them."""
        if type(value) is not torch.Tensor or not is_plain(value) or not value.numel():
            return NotImplemented
        buffer = pickle.PickleBuffer(flat_bytes(value))
        return as_tensor, (buffer, value.dtype, [*value.shape])
