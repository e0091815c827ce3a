"""Makes the arrays of a batch, and collates fields that have no meaning of their own by their kind.

The kind of a field is that of its values: text or bytes; numbers (0-dimensional arrays and tensors
too); arrays, which are numpy's, torch's, lists of numbers, and what numpy takes for an array.
Anything else is refused: memory that numpy would take for addresses of Python's objects (a field of
None or dicts has no other type there) ends the process.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...balancer.planning.problem.layout import Rule
from ..arena.layout import LEAST_IN_SLOT
from ..arena.worker import this_worker
from .stacked import EVERY, describe_kinds

Sample = Mapping[str, Any]
Batch = dict[str, Any]
Array = npt.NDArray[Any]
Samples = Sequence[Sample]
_Fill = int | float | None
# torch's types that numpy has not, and what their bits are copied as.
BITS = {torch.bfloat16: torch.int16} | {
    getattr(torch, name): torch.uint8
    for name in vars(torch)
    if name.startswith(("float8", "float4"))
}
# The rule of a field that none names: numbers are stacked, texts listed, arrays concatenated.
BY_KIND = Rule("by kind")


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array on a buffer of its own, contents undefined; in a worker one to be sent as is.

    dtype: numbers; see read_array. Raises OSError where memory is short.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes == 0:  # nothing to hold, and no buffer can be viewed as nothing
        return np.empty(shape, dtype)
    worker = this_worker()
    if worker is None or nbytes < LEAST_IN_SLOT:
        buffer = torch.empty(nbytes, dtype=torch.uint8)
    else:
        buffer = worker.sender.tensor(nbytes)
    return np.ndarray(shape, dtype, buffer.numpy())


def filled_tensor(values: npt.ArrayLike, dtype: npt.DTypeLike) -> Tensor:
    """Return values as a tensor of that dtype, on a buffer of its own."""
    array = empty_array((len(values),) if isinstance(values, list) else np.shape(values), dtype)
    array[...] = values
    return torch.from_numpy(array)


def read_array(value: Any, place: int, name: str) -> Array:
    """Return a sample's field as an array that torch has a type for; a view where it can be one.

    place: of the sample in its microbatch. Raises TypeError, with what to do, for what is no
    number, array or list of numbers, and ValueError for a list of lists that are not alike.
    """
    try:
        is_tensor = isinstance(value, Tensor)
        array = value.numpy(force=True) if is_tensor else np.asarray(value)
    except Exception as error:  # what a value's own __array__ raises, too
        if isinstance(error, ValueError) and isinstance(value, (list, tuple)):
            raise ValueError(
                f"field {name!r} of sample {place} is a {type(value).__name__} whose parts are not "
                "alike: give it as one array, or as several fields"
            ) from error
        raise _no_numbers(name, place, f"a {type(value).__name__} ({error})") from error
    if isinstance(value, np.ma.MaskedArray):
        raise _no_numbers(name, place, "a masked array, whose mask no tensor has")
    if array.dtype.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # C's long long is int64 by another name, which torch does not know
        array = array.view(np.dtype(array.dtype.str))
    if not _has_tensors(array.dtype):
        is_array = array.ndim or isinstance(value, np.ndarray)
        of = f" of {array.dtype}" if is_array else ""
        raise _no_numbers(name, place, f"a {type(value).__name__}{of}")
    return array


def _no_numbers(name: str, place: int, fault: str) -> TypeError:
    return TypeError(
        f"field {name!r} of sample {place} is {fault}, and layouts 'padded' and 'packed' take "
        "numbers, arrays of numbers, str and bytes, of one kind in all samples: leave it out, "
        "give it as one of these, or use layout='torch' with a collate_fn"
    )


@cache
def _has_tensors(dtype: np.dtype[Any]) -> bool:
    """Return whether torch has a type for it."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return False
    return True


class UnlikeError(ValueError):
    """Values that do not fit together; by_shape: they would if they were filled up."""

    def __init__(self, name: str, values: Sequence[Any] | Mapping[int, Any]) -> None:
        super().__init__(f"field {name!r} comes as {describe_kinds(values)}; make them all alike")
        members = [*values.values()] if isinstance(values, Mapping) else [*values]
        are_arrays = all(isinstance(member, np.ndarray) for member in members)
        self.by_shape = are_arrays and len({(array.dtype, array.ndim) for array in members}) == 1


def collate_field(
    name: str,
    values: Mapping[int, Any],
    samples: int,
    rule: Rule = BY_KIND,
    fields: Container[str] = EVERY,
) -> Iterator[tuple[str, Any]]:
    """Yield a field of the batch by its rule, and its lengths where it consists of arrays.

    values: by the place of their sample in the microbatch, which has `samples`; what lacks one has
    none of it. Raises UnlikeError where they do not fit together, TypeError as read_array.
    """
    lengths = f"{name}_lengths"
    if name not in fields and lengths not in fields:
        return
    # Texts stay a list, None among them.
    texts = [value for value in values.values() if isinstance(value, (str, bytes))]
    if rule.how == "list" or texts:
        has_non_texts = any(not isinstance(v, (str, bytes, type(None))) for v in values.values())
        if rule.how != "list" and (has_non_texts or rule.how != BY_KIND.how):
            raise UnlikeError(name, values)
        if name in fields:
            yield name, [_listed(values.get(place)) for place in range(samples)]
        return
    arrays, bits = read_arrays(name, values)
    if rule.axes is not None:
        arrays = {p: _items(name, p, array, rule.axes) for p, array in arrays.items()}
    how = rule.how
    if how == BY_KIND.how:
        how = "concatenate" if any(array.ndim for array in arrays.values()) else "stack"
    fill = fill_as(rule.fill, bits)
    if name in fields:
        if how == "concatenate":
            joined = concatenated(name, arrays, fill)
        else:
            joined = _stacked(name, arrays, samples, fill if how == "pad" else None)
        yield name, joined if bits is None else joined.view(bits)
    if how != "stack" and lengths in fields:
        axes = next(iter(arrays.values())).ndim if how == "pad" else 1
        sizes = np.zeros((samples, axes), np.int32)
        for place, array in arrays.items():
            sizes[place] = array.shape[:axes]
        if axes:
            yield lengths, filled_tensor(sizes if axes > 1 else sizes[:, 0], np.int32)


def _items(name: str, place: int, array: Array, axes: int) -> Array:
    """Return an array of `axes` axes; one of an axis fewer is a single item."""
    if array.ndim not in (axes - 1, axes):
        raise ValueError(
            f"field {name!r} of sample {place} has shape {array.shape}: give an array of {axes} "
            f"axes, items first, or one of {axes - 1} for a single item"
        )
    return array[None] if array.ndim < axes else array


def _listed(value: Any) -> Any:
    """Return an array as a tensor of its own, anything else as it is."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def read_arrays(
    name: str, values: Mapping[int, Any]
) -> tuple[dict[int, Array], torch.dtype | None]:
    """Return values as arrays, and the type that they are the bits of; None where numpy has it."""
    # numpy has no type for bfloat16 and the like: their bits go through it.
    held = [v.dtype for v in values.values() if isinstance(v, Tensor) and v.dtype in BITS]
    bits = held[0] if held else None
    if held and (len(held) < len(values) or len({*held}) > 1):
        raise UnlikeError(name, values)
    if bits is not None:
        values = {p: v.view(BITS[bits]) if _has_bits(v) else v for p, v in values.items()}
    arrays = {place: read_array(value, place, name) for place, value in values.items()}
    # Lists become arrays of what type their numbers have: a sample's alone does not say it.
    if all(isinstance(value, (list, tuple)) for value in values.values()):
        arrays = dict(zip(arrays, _unify_types(name, [*arrays.values()]), strict=True))
    return arrays, bits


def fill_as(fill: Any, bits: torch.dtype | None) -> Any:
    """Return what filling is written as, where values are the bits of a type."""
    return torch.tensor(fill, dtype=bits).view(BITS[bits]).item() if bits and fill else fill


def _has_bits(tensor: Tensor) -> bool:
    """Return whether a tensor can be viewed as another type; read_array() refuses what cannot."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _unify_types(name: str, arrays: list[Array]) -> list[Array]:
    """Return what lists have become as one type: an empty list, or 1 beside 1.5, has none itself.

    >>> [a.tolist() for a in _unify_types("", [np.ones(1, int), np.ones(0), np.array([0.5])])]
    [[1.0], [], [0.5]]
    """
    filled = [array for array in arrays if array.size]
    if not filled:
        return arrays
    dtype, inner = find_common_type(name, filled), filled[0].shape[1:]
    none = np.empty((0, *inner), dtype)
    return [array.astype(dtype, copy=False) if array.size else none for array in arrays]


def find_common_type(name: str, arrays: list[Array]) -> np.dtype[Any]:
    """Return the type that holds the numbers of all arrays; ValueError where there is none."""
    dtype = np.result_type(*arrays)
    if dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
        raise UnlikeError(name, arrays)  # int64 beside uint64
    return dtype


def concatenated(name: str, arrays: Mapping[int, Array], fill: _Fill = None) -> Tensor:
    """Copy all arrays into one buffer; arrays: by the place of their sample in its microbatch.

    fill: what other axes than the first are filled up with; None where they must be alike. Raises
    UnlikeError where shapes do not fit.
    """
    if not all(array.ndim for array in arrays.values()):
        raise UnlikeError(name, arrays)
    ends = [*accumulate(map(len, arrays.values()), initial=0)]
    spans = [slice(begin, end) for begin, end in pairwise(ends)]
    return _joined(name, arrays, spans, ends[-1], fill)


def _stacked(name: str, arrays: Mapping[int, Array], samples: int, fill: _Fill) -> Tensor:
    """Return (samples, ...): numbers, or arrays filled up to the largest; fill None: all alike."""
    numbers = [*arrays.values()]
    if len(arrays) == samples and not any(number.ndim for number in numbers):
        return filled_tensor(np.stack(numbers), find_common_type(name, numbers))
    return _joined(name, arrays, [*arrays], samples, fill)


def _joined(
    name: str, arrays: Mapping[int, Array], places: Sequence[slice | int], rows: int, fill: _Fill
) -> Tensor:
    """Copy arrays into one of `rows` rows, each to its rows (slices) or to a row of its own."""
    first = next(iter(arrays.values()))
    if len({(array.dtype, array.ndim) for array in arrays.values()}) > 1:
        raise UnlikeError(name, arrays)
    are_spans = isinstance(places[0], slice)
    shapes = [array.shape[int(are_spans) :] for array in arrays.values()]
    inner = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    is_ragged = any(shape != inner for shape in shapes) or (not are_spans and len(places) < rows)
    if is_ragged and fill is None:
        raise UnlikeError(name, arrays)
    joined = empty_array((rows, *inner), first.dtype)
    if are_spans and not is_ragged:
        np.concatenate([*arrays.values()], out=joined)  # one copy, in C
        return torch.from_numpy(joined)
    if is_ragged:
        joined[...] = fill
    for place, array, shape in zip(places, arrays.values(), shapes, strict=True):
        joined[(place, *map(slice, shape))] = array
    return torch.from_numpy(joined)
