"""Reads samples that are dicts of the same arrays by columns, without making the samples.

A microbatch's samples mostly have the same names and types, and differ in shapes alone. So their
headers are read by a decoder that takes this one kind, which compares names and types as it reads;
where the arrays lie is computed for all at once; and an array's elements are a slice of the run
that they lie in. Anything else, and anything malformed, gives None: `frames.decode_packed` reads
it, or says what is wrong.
"""

import functools
import math
from collections.abc import Callable, Sequence
from operator import itemgetter, sub
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...balancer.server.sample_layout import ALIGNMENT, DTYPES
from .arrays import KINDS_REMEMBERED, Extent, read_header

# Arrays of more elements are left to who can count them; so are empty ones of such extents.
MOST_ELEMENTS = 1 << 40

_LAST = ALIGNMENT - 1
# Name, type code and number of dimensions of each array.
Kind = tuple[tuple[str, str, int], ...]
_shape_of = itemgetter(3)


class Column(NamedTuple):
    """A field of all samples: its type, and each sample's shape and elements, in C order.

    pieces: views of the payloads, of one dimension.
    """

    dtype: np.dtype[Any]
    shapes: list[tuple[int, ...]]
    pieces: list[npt.NDArray[Any]]


class Places(NamedTuple):
    """Where payloads lie: each in a run, so many bytes behind its beginning, with so many bytes."""

    runs: Sequence[Any]
    run_of: Sequence[int]
    offsets: Sequence[int]
    lengths: Sequence[int]


def read_columns(headers: Sequence[bytes], places: Places) -> dict[str, Column] | None:
    """Return the fields of samples by their names; None if they are not all of one kind.

    The headers are packed; `places` are those of the payloads.
    """
    kind = _kind_of(headers[0]) if headers else None
    if not kind:
        return None
    reading = _reading(kind)
    decode = reading.decode
    try:
        found = [decode(header).fields for header in headers]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    shapes = [[*map(_shape_of, column)] for column in zip(*found, strict=True)]
    counts = [*map(_counts, shapes)]
    if None in counts:
        return None
    begins = _begins(counts, reading, places)
    if begins is None:
        return None
    fields = zip(kind, reading.dtypes, shapes, counts, begins, strict=True)
    views: dict[np.dtype[Any], list[npt.NDArray[Any]]] = {}
    columns = {}
    for (name, *_), dtype, each, numbers, begin in fields:
        runs = views.get(dtype)
        if runs is None:
            size = dtype.itemsize
            runs = [np.ndarray((len(run) // size,), dtype, run) for run in places.runs]
            views[dtype] = runs
        columns[name] = Column(dtype, each, _pieces(runs, places.run_of, begin, numbers))
    return columns


def _kind_of(header: bytes) -> Kind | None:
    """Return the kind of a header; None if it is not one of arrays with different names."""
    fields = read_header(header)
    if fields is None or any(code not in DTYPES for _, _, code, _ in fields):
        return None
    if len({name for name, *_ in fields}) < len(fields):
        return None
    return tuple((name, code, len(shape)) for name, _, code, shape in fields)


class _Reading(NamedTuple):
    """How a kind is read: what decodes its headers, and refuses others; the types of its arrays.

    shifts: an element has 1 << shift bytes.
    """

    decode: Callable[[bytes], Any]
    dtypes: tuple[np.dtype[Any], ...]
    shifts: tuple[int, ...]


@functools.lru_cache(KINDS_REMEMBERED)
def _reading(kind: Kind) -> _Reading:
    arrays: Any = tuple(
        tuple[Literal[name], Literal["array"], Literal[code], tuple[(Extent,) * dimensions]]  # type: ignore[valid-type]
        for name, code, dimensions in kind
    )
    header = msgspec.defstruct("Header", [("fields", tuple[arrays])], forbid_unknown_fields=True)
    dtypes = tuple(DTYPES[code] for _, code, _ in kind)
    shifts = tuple(dtype.itemsize.bit_length() - 1 for dtype in dtypes)
    return _Reading(msgspec.msgpack.Decoder(header).decode, dtypes, shifts)


def _counts(shapes: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Return the elements of each array; None where numpy may not be able to make one."""
    if len(shapes[0]) == 1:
        counts = [extent for (extent,) in shapes]
    else:
        counts = [*map(math.prod, shapes)]
        # An empty one has a size, too: that of its other dimensions.
        if 0 in counts and any(_is_too_large(shape) for shape in set(shapes)):
            return None
    return None if max(counts) > MOST_ELEMENTS else counts


def _is_too_large(shape: tuple[int, ...]) -> bool:
    return math.prod(each or 1 for each in shape) > MOST_ELEMENTS


def _begins(
    counts: Sequence[Sequence[int]], reading: _Reading, places: Places
) -> list[list[int]] | None:
    """Return at which element of its run each array begins, by field and sample.

    None if some payload has another size, or begins where its arrays are not aligned. Loops take
    less here than numpy's functions, unless there are hundreds of samples.
    """
    at = ends = [*places.offsets]
    if math.gcd(ALIGNMENT, *at) < ALIGNMENT:
        return None
    begins = []
    for numbers, shift in zip(counts, reading.shifts, strict=True):
        begins.append([each >> shift for each in at])
        # An empty array has no place, and takes no room.
        behind = [each + (number << shift) for each, number in zip(at, numbers, strict=True)]
        if 0 in numbers:
            ends = [end if b == a else b for a, b, end in zip(at, behind, ends, strict=True)]
        else:
            ends = behind
        at = [each + _LAST & -ALIGNMENT for each in behind]
    return begins if [*map(sub, ends, places.offsets)] == [*places.lengths] else None


def _pieces(
    runs: Sequence[npt.NDArray[Any]],
    run_of: Sequence[int],
    begins: Sequence[int],
    counts: Sequence[int],
) -> list[npt.NDArray[Any]]:
    """Return the elements of each sample's array."""
    if len(runs) == 1:
        run = runs[0]
        return [run[at : at + count] for at, count in zip(begins, counts, strict=True)]
    places = zip(run_of, begins, counts, strict=True)
    return [runs[number][at : at + count] for number, at, count in places]
