"""Encodes dicts of arrays; one of a form that came before costs little.

Samples of one data set have few different forms (names, types and shapes). The packed header of
each is remembered, so that what is left for a sample is to list its buffers.
"""

import functools
from typing import Any

import msgpack
import numpy as np

from ...balancer.server.sample_layout import (
    ALIGNMENT,
    DTYPES,
    MAX_DIMENSIONS,
    MAX_FIELDS,
    MAX_NAME_CHARACTERS,
)
from .fields import Buffer, bytes_of, read_layout

# Forms that are remembered: those of texts differ by their lengths.
FORMS_REMEMBERED = 1024

# Name, type and shape of each array.
Form = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
_ZEROS = tuple(bytes(length) for length in range(ALIGNMENT))


def encode_arrays(value: object) -> tuple[bytes, list[Buffer]] | None:
    """Return a dict's packed header and the buffers of its payload; None if it holds other things.

    They are those of `frames.encode`, with the header packed.

    >>> header, buffers = encode_arrays({"ids": np.array([65, 66], np.uint8)})
    >>> msgpack.unpackb(header), [bytes(each) for each in buffers]
    ({'fields': [['ids', 'array', '|u1', [2]]]}, [b'AB'])
    """
    if type(value) is not dict:
        return None
    form = []
    for name, array in value.items():
        if type(array) is not np.ndarray or type(name) is not str:
            return None
        dtype = array.dtype
        if dtype.metadata is not None:  # equal to the same without, but no field
            return None
        form.append((name, dtype, array.shape))
    described = _described(tuple(form))
    if described is None:
        return None
    header, gaps = described
    buffers: list[Buffer] = []
    for array, gap in zip(value.values(), gaps, strict=True):
        if gap:
            buffers.append(_ZEROS[gap])
        if array.size:
            buffers.append(bytes_of(array))
    return header, buffers


@functools.lru_cache(FORMS_REMEMBERED)
def _described(form: Form) -> tuple[bytes, tuple[int, ...]] | None:
    """Return a form's packed header, and the zeros before each array; None if it has no fields."""
    names_fit = all(len(name) <= MAX_NAME_CHARACTERS for name, _, _ in form)
    types_fit = all(
        DTYPES.get(dtype.str) == dtype and len(shape) <= MAX_DIMENSIONS for _, dtype, shape in form
    )
    if len(form) > MAX_FIELDS or not (names_fit and types_fit):
        return None
    layout = [[name, "array", dtype.str, list(shape)] for name, dtype, shape in form]
    # Zeros before an array bring it to its alignment; an empty one has no place in the payload.
    gaps, end = [], 0
    for place in read_layout(layout).places:
        gaps.append(place.start - end if place.count else 0)
        end = max(end, place.end)
    return msgpack.packb({"fields": layout}), tuple(gaps)
