"""Encodes any Python object by pickle, with the bytes of arrays and tensors beside the pickle.

Arrays and ordinary CPU tensors travel as the arena has them (`arena/packing.py`), as the bytes of
their elements; everything else is pickled as usual. Only for use inside one machine: reading a
pickle runs what its writer wanted.
"""

import copyreg
import reprlib
import warnings

from ..arena.packing import pack, unpack
from .fields import Buffer, CodecError, aligned, padded

MAX_BUFFERS = 1 << 16


def encode_object(value: object) -> tuple[list[int], list[Buffer]]:
    """Return the sizes of the pickle and its buffers, and the buffers that make the payload.

    Raises what pickle raises for what it cannot pickle.
    """
    pickled, pieces = pack(value, None, copyreg.dispatch_table)
    contents = [pickled, *(piece.data for piece in pieces)]
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
    if not payload.readonly:
        return unpack(parts[0], parts[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nobody is told to write to it
        return unpack(parts[0], parts[1:])
