"""Makes the arrays of a batch, and collates fields that have no meaning of their own by their kind.

The kind of a field is that of its values: text or bytes; numbers (0-dimensional arrays and tensors
too); arrays, which are numpy's, torch's, lists of numbers, and what numpy takes for an array.
Anything else is refused: memory that numpy would take for addresses of Python's objects (a field of
None or dicts has no other type there) ends the process.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...workers.arena.layout import LEAST_IN_SLOT
from ...workers.arena.worker import this_worker

Sample = Mapping[str, Any]
Batch = dict[str, Any]
Array = npt.NDArray[Any]
# torch's types that numpy has not, and what their bits are copied as.
BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


class _Every(Container[str]):
    def __contains__(self, name: object) -> bool:
        return True

    def __repr__(self) -> str:
        return "EVERY"


# In place of the names of a batch's fields: all of them.
EVERY: Container[str] = _Every()


def empty_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array on a buffer of its own, contents undefined; in a worker one to be sent as is.

    dtype: numbers; see array_of. Raises OSError where memory is short.
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


def filled_tensor(values: npt.ArrayLike, dtype: npt.DTypeLike) -> torch.Tensor:
    """Return values as a tensor of that dtype, on a buffer of its own."""
    array = empty_array((len(values),) if isinstance(values, list) else np.shape(values), dtype)
    array[...] = values
    return torch.from_numpy(array)


def array_of(value: Any, place: int, name: str) -> Array:
    """Return a sample's field as an array that torch has a type for; a view where it can be one.

    place: of the sample in its microbatch. Raises TypeError, with what to do, for what is no
    number, array or list of numbers, and ValueError for a list of lists that are not alike.
    """
    try:
        is_tensor = isinstance(value, torch.Tensor)
        array = value.numpy(force=True) if is_tensor else np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"field {name!r} of sample {place} is a {type(value).__name__} whose parts are not "
            "alike: give it as one array, or as several fields"
        ) from error
    except (TypeError, RuntimeError) as error:
        raise _no_numbers(name, place, f"a {type(value).__name__} ({error})") from error
    if isinstance(value, np.ma.MaskedArray):
        raise _no_numbers(name, place, "a masked array, whose mask no tensor has")
    if array.dtype.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # C's long long is int64 by another name, which torch does not know
        array = array.view(np.dtype(array.dtype.str))
    if not _has_tensors(array.dtype):
        what = f"a {type(value).__name__}"
        raise _no_numbers(name, place, what + (f" of {array.dtype}" if array.ndim else ""))
    return array


def _no_numbers(name: str, place: int, what: str) -> TypeError:
    return TypeError(
        f"field {name!r} of sample {place} is {what}, and layouts 'padded' and 'packed' take "
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


def collate_others(
    samples: Sequence[Sample], known: Container[str], fields: Container[str] = EVERY
) -> Batch:
    """Return every field but the known ones, collated by its kind.

    fields: the names of what is wanted of it; nothing else is copied.
    """
    names = {name: None for sample in samples for name in sample if name not in known}
    batch: Batch = {}
    for name in names:
        missing = [place for place, sample in enumerate(samples) if name not in sample]
        if missing:
            raise ValueError(
                f"field {name!r} is missing in samples {missing} of {len(samples)}; "
                "give it to every sample, or to none"
            )
        made = dict(_field(name, [sample[name] for sample in samples], fields))
        if taken := [each for each in made if each != name and each in names]:
            raise ValueError(
                f"samples have a field {taken[0]!r}, which is the name of the lengths of "
                f"{name!r} in the batch: give the samples' another name"
            )
        batch.update(made)
    return batch


def _field(name: str, values: list[Any], fields: Container[str]) -> Iterable[tuple[str, Any]]:
    """Yield a field of the batch, and its lengths where it consists of arrays."""
    lengths = f"{name}_lengths"
    if name not in fields and lengths not in fields:
        return
    if any(isinstance(value, (str, bytes)) for value in values):
        if name in fields:
            # Nothing of a batch lies in a payload, which other processes may be reading.
            yield name, [v.copy() if isinstance(v, np.ndarray) else v for v in values]
        return
    kinds = {v.dtype if isinstance(v, torch.Tensor) and v.dtype in BITS else None for v in values}
    kind = kinds.pop()
    if kinds:
        raise ValueError(
            f"field {name!r} comes as {kind or kinds.pop()} and as another type; make them all "
            "alike"
        )
    if kind is not None:  # sparse tensors have no bits to be viewed: array_of() refuses them
        values = [v.view(BITS[kind]) if v.layout is torch.strided else v for v in values]
    arrays = [array_of(value, place, name) for place, value in enumerate(values)]
    if all(isinstance(value, (list, tuple)) for value in values):
        arrays = _of_one_type(arrays)
    are_arrays = any(array.ndim for array in arrays)
    if name in fields:
        joined = concatenated(name, arrays) if are_arrays else _stacked(name, arrays)
        yield name, joined if kind is None else joined.view(kind)
    if are_arrays and lengths in fields:
        yield lengths, filled_tensor([len(array) for array in arrays], np.int32)


def _of_one_type(arrays: list[Array]) -> list[Array]:
    """Return what lists have become as one type: an empty list, or 1 beside 1.5, has none itself.

    >>> [each.tolist() for each in _of_one_type([np.array([1]), np.array([]), np.array([1.5])])]
    [[1.0], [], [1.5]]
    """
    filled = [array for array in arrays if array.size]
    if not filled:
        return arrays
    dtype, inner = np.result_type(*filled), filled[0].shape[1:]
    return [
        array.astype(dtype, copy=False) if array.size else np.empty((0, *inner), dtype)
        for array in arrays
    ]


def _stacked(name: str, numbers: list[Array]) -> torch.Tensor:
    dtype = np.result_type(*numbers)
    if dtype.kind == "f" and all(number.dtype.kind in "iu" for number in numbers):
        raise _not_alike(name, numbers)  # int64 beside uint64: no type has both
    return filled_tensor(np.stack(numbers), dtype)


def concatenated(name: str, arrays: list[Array]) -> torch.Tensor:
    """Copy all arrays into one buffer; raise ValueError where shapes do not fit."""
    if len({(array.dtype, array.shape[1:], array.ndim) for array in arrays}) > 1:
        raise _not_alike(name, arrays)
    joined = empty_array((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    np.concatenate(arrays, out=joined)
    return torch.from_numpy(joined)


def _not_alike(name: str, arrays: list[Array]) -> ValueError:
    shapes = [("n", *array.shape[1:]) if array.ndim else () for array in arrays]
    kinds = sorted({f"{a.dtype} {shape}" for a, shape in zip(arrays, shapes, strict=True)})
    return ValueError(f"field {name!r} comes as {' and '.join(kinds)}; make them all alike")
