"""Checks costs and names as they come in: one rule and one message for all."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .failures import SampleError

# The most that planning adds up: balancer/planning/problem/costs.py has the same.
MAX_COST = 2**40


def checked_cost(name: str, value: object, sample: str) -> int:
    """Return a sample's cost of the resource `name` as an int; SampleError where it is none.

    A cost is an integer from 0 to MAX_COST, Python's, numpy's or of a tensor. Floats are refused
    even where they are whole, since a cost that was rounded by chance would be another elsewhere.

    >>> checked_cost("tokens", np.int32(7), "a")
    7
    >>> checked_cost("tokens", float("nan"), "a")
    Traceback (most recent call last):
    ...
    counterpoise.workers.sources.failures.SampleError: sample 'a': cost 'tokens' is nan, \
allowed are whole numbers from 0 to 2**40: round it, or use a larger unit
    """
    try:
        cost = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # of a tensor on no device
        cost = -1
    if 0 <= cost <= MAX_COST:
        return cost
    raise SampleError(sample, bad_cost(name, value))


def checked_name(name: object, sample: str) -> str:
    """Return the name of one of a sample's costs as a str; SampleError where it is no text."""
    if isinstance(name, str):
        return str(name)
    raise SampleError(
        sample, f'a cost is named {name!r:.80} ({type(name).__name__}): give a text, as "tokens"'
    )


def bad_cost(name: str, value: object) -> str:
    """Return the reason why a value cannot be a cost of the resource `name`."""
    shown = value.item() if isinstance(value, np.generic) else value
    return (
        f"cost {name!r} is {shown!r:.80}, allowed are whole numbers from 0 to 2**40: round it, or "
        "use a larger unit"
    )


def checked_column(name: str, values: Sequence[Any] | np.ndarray) -> npt.NDArray[np.int64]:
    """Return the costs of samples 0, 1, ... as int64 (n,); SampleError names the first bad one.

    >>> checked_column("tokens", [5, 7]).tolist()
    [5, 7]
    """
    column = np.asarray(values)
    integers = column.dtype.kind in "iu"
    if not integers or (column.size and (column.min() < 0 or column.max() > MAX_COST)):
        # An array made of a list has changed its values: 2**63 to a float, 1 to "1" beside a text.
        originals = values if isinstance(values, list | tuple) else column
        checked = [checked_cost(name, value, str(row)) for row, value in enumerate(originals)]
        return np.array(checked, dtype=np.int64)
    return column.astype(np.int64, copy=False)


def checked_measure(cost: Any) -> dict[str, int]:
    """Return what a cost function has returned; TypeError for anything but costs by resource.

    >>> checked_measure(5)
    Traceback (most recent call last):
    TypeError: cost(sample) returned 5 (int), needed is a mapping from each resource to a whole \
number: return {"tokens": 5}, say
    """
    if not isinstance(cost, Mapping):
        raise TypeError(
            f"cost(sample) returned {cost!r:.80} ({type(cost).__name__}), needed is a mapping "
            f'from each resource to a whole number: return {{"tokens": {cost!r:.80}}}, say'
        )
    return dict(cost)


def checked_table(costs: Mapping[str, Any] | np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return a table of the costs of `count` samples, by resource; ValueError for another form."""
    named = costs if isinstance(costs, Mapping) else {"cost": costs}
    for name, row in named.items():
        if np.shape(row) != (count,):
            raise ValueError(
                f"costs of {name!r} have shape {np.shape(row)}: give {count} of them, one a sample"
            )
    return {str(name): checked_column(str(name), row) for name, row in named.items()}


def checked_key(name: object, index: int) -> str:
    """Return a sample's name as a str, also where it was numpy's, or a whole number.

    TypeError for others: their text may hold an address, or be one for several samples.

    >>> checked_key(np.str_("a"), 0), checked_key(np.int64(7), 7)
    ('a', '7')
    """
    if isinstance(name, str):
        return name if type(name) is str else str.__str__(name)
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(int(name))
    raise TypeError(
        f"key({index}) returned {name!r:.80} ({type(name).__name__}), needed is "
        "the sample's name: return a str, or a whole number"
    )


def sample_nbytes(sample: Any) -> int:
    """Return about how many bytes a sample's payload takes: arrays, tensors, text, numbers.

    >>> sample_nbytes({"pixels": np.zeros((2, 3), np.uint8), "text": "abc", "label": 1})
    17
    """
    if isinstance(sample, str):
        return len(sample.encode("utf-8", "surrogatepass"))
    try:
        return int(sample.nbytes)
    except (AttributeError, TypeError, RuntimeError):  # torch's sparse tensors do not say
        pass
    if isinstance(sample, bytes | bytearray):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(sample_nbytes(value) for value in sample.values())
    if isinstance(sample, list | tuple):
        return sum(sample_nbytes(value) for value in sample)
    return 8
