"""Makes the arrays of a batch, and collates fields that have no meaning of their own by their kind.

The kind of a field is that of its values: text or bytes; numbers (0-dimensional arrays and tensors
too); arrays, which are numpy's, torch's, lists of numbers, and what numpy takes for an array.
Anything else is refused: memory that numpy would take for addresses of Python's objects (a field of
None or dicts has no other type there) ends the process.
"""

import math
import os
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
BITS = {torch.bfloat16: torch.int16} | {
    each: torch.uint8 for name, each in vars(torch).items() if name.startswith(("float8", "float4"))
}
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
# From here on whole numbers are no int64.
TOO_LARGE = 1 << 63


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
    except Exception as error:  # what a value's own __array__ raises, too
        if isinstance(error, ValueError) and isinstance(value, (list, tuple)):
            raise ValueError(
                f"field {name!r} of sample {place} is a {type(value).__name__} whose parts are not "
                "alike: give it as one array, or as several fields"
            ) from error
        raise _no_numbers(name, place, f"a {type(value).__name__} ({error})") from error
    if isinstance(value, np.ma.MaskedArray):
        raise _no_numbers(name, place, "a masked array, whose mask no tensor has")
    if _is_rounded(value, array):
        raise _no_numbers(name, place, f"a {type(value).__name__} of numbers that no type has all")
    if array.dtype.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # C's long long is int64 by another name, which torch does not know
        array = array.view(np.dtype(array.dtype.str))
    if not _has_tensors(array.dtype):
        is_array = array.ndim or isinstance(value, np.ndarray)
        of = f" of {array.dtype}" if is_array else ""
        raise _no_numbers(name, place, f"a {type(value).__name__}{of}")
    return array


def _is_rounded(value: Any, array: Array) -> bool:
    """Return whether numpy has made floats of a list of whole numbers, some too large for int64.

    >>> _is_rounded([1 << 63, -1], np.asarray([1 << 63, -1])), _is_rounded([1e30], np.array([1e30]))
    (True, False)
    """
    if array.dtype != np.float64 or not isinstance(value, (list, tuple)):
        return False
    large = (np.abs(array) >= TOO_LARGE).any()
    return bool(large) and all(isinstance(each, int) for each in np.array(value, object).flat)


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
    # Texts stay a list, None among them.
    if any(isinstance(value, (str, bytes)) for value in values):
        if not all(value is None or isinstance(value, (str, bytes)) for value in values):
            raise _not_alike(name, values)
        if name in fields:
            yield name, values
        return
    # numpy has no type for bfloat16 and the like: their bits go through it.
    kinds = [v.dtype if isinstance(v, torch.Tensor) and v.dtype in BITS else None for v in values]
    kind = kinds[0]
    if kinds.count(kind) < len(kinds):
        raise _not_alike(name, values)
    if kind is not None:
        values = [v.view(BITS[kind]) if _has_bits(v) else v for v in values]
    arrays = [array_of(value, place, name) for place, value in enumerate(values)]
    # Lists become arrays of what type their numbers have: a sample's alone does not say it.
    if all(isinstance(value, (list, tuple)) for value in values):
        arrays = _of_one_type(name, arrays)
    are_arrays = any(array.ndim for array in arrays)
    if name in fields:
        if are_arrays:
            joined = concatenated(name, dict(enumerate(arrays)))
        else:
            joined = filled_tensor(np.stack(arrays), _type_of_all(name, arrays))
        yield name, joined if kind is None else joined.view(kind)
    if are_arrays and lengths in fields:
        yield lengths, filled_tensor([len(array) for array in arrays], np.int32)


def _has_bits(tensor: torch.Tensor) -> bool:
    """Return whether a tensor can be viewed as another type; array_of() refuses what cannot."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _of_one_type(name: str, arrays: list[Array]) -> list[Array]:
    """Return what lists have become as one type: an empty list, or 1 beside 1.5, has none itself.

    >>> [each.tolist() for each in _of_one_type("", [np.ones(1, int), np.ones(0), np.array([0.5])])]
    [[1.0], [], [0.5]]
    """
    filled = [array for array in arrays if array.size]
    if not filled:
        return arrays
    dtype, inner = _type_of_all(name, filled), filled[0].shape[1:]
    return [
        array.astype(dtype, copy=False) if array.size else np.empty((0, *inner), dtype)
        for array in arrays
    ]


def _type_of_all(name: str, arrays: list[Array]) -> np.dtype[Any]:
    """Return the type that holds the numbers of all arrays; ValueError where there is none."""
    dtype = np.result_type(*arrays)
    if dtype.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
        raise _not_alike(name, arrays)  # int64 beside uint64
    return dtype


def concatenated(name: str, arrays: Mapping[int, Array]) -> torch.Tensor:
    """Copy all arrays into one buffer; arrays: by the place of their sample in its microbatch.

    Raises ValueError where shapes do not fit, and where the machine's memory is too small: views
    that numpy or torch has expanded may be of any size.
    """
    first, *others = arrays.values()
    inner = first.dtype, first.shape[1:], first.ndim
    if any((each.dtype, each.shape[1:], each.ndim) != inner for each in others):
        raise _not_alike(name, arrays)
    nbytes = sum(array.nbytes for array in arrays.values())
    if nbytes > MEMORY_BYTES:
        raise ValueError(
            f"field {name!r} of samples {[*arrays]} has {nbytes} bytes together, and this machine "
            f"{MEMORY_BYTES}: give smaller arrays, or fewer samples a microbatch"
        )
    joined = empty_array((sum(map(len, arrays.values())), *first.shape[1:]), first.dtype)
    np.concatenate([*arrays.values()], out=joined)
    return torch.from_numpy(joined)


def _not_alike(name: str, values: Sequence[Any] | Mapping[int, Any]) -> ValueError:
    return ValueError(f"field {name!r} comes as {kinds_of(values)}; make them all alike")


def kinds_of(values: Sequence[Any] | Mapping[int, Any]) -> str:
    """Return what values are, each kind with the first sample that has it.

    >>> kinds_of([np.ones(3), 1, np.ones(2), 2])
    "float64 ('n',) in sample 0 and int in sample 1"
    """
    places: dict[str, int] = {}
    for place, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        kind = type(value).__name__
        if isinstance(value, (np.ndarray, torch.Tensor)) and not getattr(value, "is_nested", False):
            kind = f"{value.dtype} {('n', *value.shape[1:]) if value.ndim else ()}"
        places.setdefault(kind, place)
    return " and ".join(f"{kind} in sample {place}" for kind, place in places.items())
