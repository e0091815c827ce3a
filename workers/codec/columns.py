"""Reads samples that are dicts of the same arrays by columns, as a rule without making them.

A microbatch's samples mostly have the same names and types, and differ in shapes alone. So their
headers are read by a decoder that takes this one kind, which compares names and types as it reads;
where the arrays lie is computed for all at once; and an array's elements are a slice of the run
that they lie in. Anything else, and anything malformed, gives None: `frames.decode_packed` reads
it, or says what is wrong.
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter, itemgetter, not_
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from .arrays import Extent, read_header
from .fields import ALIGNMENT, DTYPES

# Arrays of more elements are left to who can count them; so are empty ones of such extents.
MOST_ELEMENTS = 1 << 40
KINDS_REMEMBERED = 256

_LAST = ALIGNMENT - 1
Array = npt.NDArray[Any]
# Name, type code and number of dimensions of each array.
Kind = tuple[tuple[str, str, int], ...]
_shape_of = itemgetter(3)
# Of a shape.
first_extent, other_extents = itemgetter(0), itemgetter(slice(1, None))


class Column(NamedTuple):
    """A field of all samples: its type, each sample's shape and number of elements.

    They lie in runs, which are arrays of this type: in which one, and at which element.
    """

    dtype: np.dtype[Any]
    shapes: list[tuple[int, ...]]
    counts: list[int]
    runs: list[Array]
    run_of: Sequence[int]
    begins: list[int]

    def pieces(self) -> list[Array]:
        """Return each sample's elements in C order, as views of its payload."""
        if len(self.runs) == 1:
            run, places = self.runs[0], zip(self.begins, self.counts, strict=True)
            return [run[at : at + count] for at, count in places]
        each = zip(self.run_of, self.begins, self.counts, strict=True)
        return [self.runs[number][at : at + count] for number, at, count in each]

    def elements(self) -> Array:
        """Return all elements, one sample's behind the other's; for a few of each."""
        if len(self.runs) > 1:
            return np.concatenate(self.pieces())
        run, counts = self.runs[0], self.counts
        if max(counts) <= 1:  # most often
            return run[[*compress(self.begins, counts)]]
        places = zip(self.begins, counts, strict=True)
        return run[[at for begin, count in places for at in range(begin, begin + count)]]


class HeldColumn(NamedTuple):
    """A field of all samples that are here, as in Column."""

    dtype: np.dtype[Any]
    shapes: list[tuple[int, ...]]
    counts: list[int]
    arrays: Sequence[Array]

    def pieces(self) -> list[Array]:
        """Return each sample's elements in C order, as views of its array where that is."""
        if len(self.shapes[0]) == 1:
            return [*self.arrays]
        return [*map(np.ndarray.ravel, self.arrays)]

    def elements(self) -> Array:
        """Return all elements, one sample's behind the other's."""
        return np.concatenate(self.pieces())


class Places(NamedTuple):
    """The places of payloads: of each the number of its run, its offset and length in bytes."""

    runs: Sequence[Any]
    run_of: Sequence[int]
    offsets: Sequence[int]
    lengths: Sequence[int]


class ColumnReader:
    """Reads the samples of one source; the kind that they had last is tried first."""

    def __init__(self) -> None:
        self._reading: _Reading | None = None

    def read(self, headers: Sequence[bytes], places: Places) -> dict[str, Column] | None:
        """Return the fields of samples by their names; None if they are not all of one kind.

        The headers are packed; `places` are those of the payloads.
        """
        found = self._decoded(headers) if len(headers) == len(places.lengths) else None
        if found is None or self._reading is None:
            return None
        names, dtypes, shifts = self._reading.names, self._reading.dtypes, self._reading.shifts
        shapes = [[*map(_shape_of, column)] for column in zip(*found, strict=True)]
        counts = [each for each in map(_counts, shapes) if each is not None]
        if len(counts) < len(shapes):
            return None
        # This compares each payload's size, too: nothing is read beyond it.
        begins = _begins(counts, shifts, places)
        if begins is None:
            return None
        runs = {
            dtype: [np.ndarray((len(run) // dtype.itemsize,), dtype, run) for run in places.runs]
            for dtype in dict.fromkeys(dtypes)
        }
        fields = zip(names, dtypes, shapes, counts, begins, strict=True)
        return {
            name: Column(dtype, each, numbers, runs[dtype], places.run_of, at)
            for name, dtype, each, numbers, at in fields
        }

    def _decoded(self, headers: Sequence[bytes]) -> list[Any] | None:
        """Return what each header has, None if they are not all of one kind."""
        if not headers:
            return None
        found = _decoded_as(self._reading, headers)
        if found is None:
            self._reading = _reading(_kind_of(headers[0]))
            found = _decoded_as(self._reading, headers)
        return found


def columns_of(samples: Sequence[Any]) -> dict[str, HeldColumn] | None:
    """Return the fields of samples by their names; None if they are not all of one kind."""
    if {*map(type, samples)} != {dict} or len({*map(len, samples)}) > 1:
        return None
    names = [*samples[0]]
    if {*map(type, names)} != {str}:
        return None
    try:
        columns = {name: _column_of([*map(itemgetter(name), samples)]) for name in names}
    except KeyError:
        return None
    found = {name: each for name, each in columns.items() if each is not None}
    return found if len(found) == len(names) else None


def _column_of(arrays: Sequence[Any]) -> HeldColumn | None:
    """Return one field of all samples; None if they differ in more than length, or are no field."""
    if {*map(type, arrays)} != {np.ndarray}:
        return None
    dtype, dimensions = arrays[0].dtype, arrays[0].ndim
    if DTYPES.get(dtype.str) != dtype or dtype.metadata is not None:
        return None
    shapes = [*map(_shape, arrays)]
    if {*map(len, shapes)} != {dimensions} or [*map(_dtype, arrays)].count(dtype) < len(arrays):
        return None
    counts = _counts(shapes)
    return None if counts is None else HeldColumn(dtype, shapes, counts, arrays)


_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


def _decoded_as(reading: "_Reading | None", headers: Sequence[bytes]) -> list[Any] | None:
    if reading is None:
        return None
    decode = reading.decode
    try:
        return [decode(header).fields for header in headers]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _kind_of(header: bytes) -> Kind:
    """Return the kind of a header, empty if it is not one of arrays with different names."""
    fields = read_header(header)
    if fields is None or any(code not in DTYPES for _, _, code, _ in fields):
        return ()
    if len({name for name, *_ in fields}) < len(fields):
        return ()
    return tuple((name, code, len(shape)) for name, _, code, shape in fields)


class _Reading(NamedTuple):
    """The decoder of a kind, which refuses other headers; names and types of the kind's arrays.

    shifts: an element has 1 << shift bytes; a column of them.
    """

    decode: Callable[[bytes], Any]
    names: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]
    shifts: Array


@functools.lru_cache(KINDS_REMEMBERED)
def _reading(kind: Kind) -> _Reading | None:
    if not kind:
        return None
    arrays: Any = tuple(
        tuple[Literal[name], Literal["array"], Literal[code], tuple[(Extent,) * dimensions]]  # type: ignore[misc, valid-type]
        for name, code, dimensions in kind
    )
    header = msgspec.defstruct("Header", [("fields", tuple[arrays])], forbid_unknown_fields=True)
    dtypes = tuple(DTYPES[code] for _, code, _ in kind)
    shifts = np.array([[dtype.itemsize.bit_length() - 1] for dtype in dtypes])
    names = tuple(name for name, *_ in kind)
    return _Reading(msgspec.msgpack.Decoder(header).decode, names, dtypes, shifts)


def _counts(shapes: Sequence[tuple[int, ...]]) -> list[int] | None:
    """Return the elements of each array; None where numpy may not be able to make one."""
    if len(shapes[0]) == 1:
        counts = [extent for (extent,) in shapes]
    else:
        counts = [*map(math.prod, shapes)]
        # An empty one has a size, too: that of its dimensions which are not 0.
        if any(_size(each) > MOST_ELEMENTS for each in set(compress(shapes, map(not_, counts)))):
            return None
    return None if max(counts) > MOST_ELEMENTS else counts


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(each or 1 for each in shape)


def _begins(
    counts: Sequence[Sequence[int]], shifts: Array, places: Places
) -> list[list[int]] | None:
    """Return at which element of its run each array begins, by field and sample.

    None if some payload has another size, or begins where its arrays are not aligned.
    """
    offsets = np.array(places.offsets)
    nbytes = np.array(counts) << shifts
    room = (nbytes + _LAST) & -ALIGNMENT
    begins = room.cumsum(axis=0) - room
    # What is behind an array until the next begins: an empty one has no place.
    sizes = ((begins + nbytes) * (nbytes > 0)).max(axis=0)
    if (offsets & _LAST).any() or sizes.tolist() != [*places.lengths]:
        return None
    found: list[list[int]] = ((offsets + begins) >> shifts).tolist()
    return found
