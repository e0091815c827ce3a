"""Asks a map-style data set what it offers: it is asked here, and nowhere else.

One that is no Source may offer `key`, `probe`, `load` and `fingerprint` as a Source has them,
`thread_safe` and `knows_costs`. torch's Subset and ConcatDataset are looked into.
"""

import bisect
from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any

from .interface import Sample, Source


def find_key_function(dataset: Any) -> Callable[[int], str]:
    """Return what names a data set's samples: its own method `key`, else str.

    >>> find_key_function(["a"])(0)
    '0'
    """
    is_unnamed = isinstance(dataset, Source) and not dataset.names_samples
    return (None if is_unnamed else offered_method(dataset, "key")) or str


def says_costs(dataset: Any) -> bool:
    """Return whether a data set has a `probe`, and does not say that it knows no costs."""
    return offered_method(dataset, "probe") is not None and bool(
        getattr(dataset, "knows_costs", True)
    )


def offered_method(dataset: Any, method: str) -> Callable[..., Any] | None:
    """Return a method of a data set; None where it has none of that name."""
    attribute = getattr(dataset, method, None)
    return attribute if callable(attribute) else None


def whole_parts(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that a dataset is made of, down to those that are made of none.

    A source is one by itself.
    """
    if is_subset(dataset):
        yield from whole_parts(dataset.dataset)
    elif is_concatenated(dataset):
        for part in dataset.datasets:
            yield from whole_parts(part)
    else:
        yield dataset


def find_part(dataset: Any, index: int) -> tuple[Any, int]:
    """Return the dataset, made of no others, that a sample is from, and its number in there."""
    if is_subset(dataset):
        return find_part(dataset.dataset, int(dataset.indices[index]))
    if is_concatenated(dataset):
        ends = dataset.cumulative_sizes
        part = bisect.bisect_right(ends, index)
        return find_part(dataset.datasets[part], index - (ends[part - 1] if part else 0))
    return dataset, index


def is_subset(dataset: Any) -> bool:
    """Return whether a dataset is made like torch's Subset."""
    is_plain = not isinstance(dataset, Source)
    return is_plain and hasattr(dataset, "indices") and hasattr(dataset, "dataset")


def is_concatenated(dataset: Any) -> bool:
    """Return whether a dataset is made like torch's ConcatDataset."""
    is_plain = not isinstance(dataset, Source)
    return is_plain and hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes")


def choose_getter(dataset: Any) -> Callable[[Any, int], Sample]:
    """Return what gets a sample of a dataset by its index: where it gives lists only, a list of 1.

    >>> class Lists:
    ...     __getitems__ = staticmethod(lambda indices: [10 * each for each in indices])
    >>> choose_getter(Lists())(Lists(), 3), choose_getter("abc")("abc", 2)
    (30, 'c')
    """
    return _get_from_lists if any(map(_gives_lists_only, whole_parts(dataset))) else getitem


def _gives_lists_only(dataset: Any) -> bool:
    method = getattr(type(dataset), "__getitem__", None)
    # The class from which torch's data sets are made has one that raises NotImplementedError.
    is_torchs = getattr(method, "__qualname__", "") == "Dataset.__getitem__"
    return (method is None or is_torchs) and hasattr(dataset, "__getitems__")


def _get_from_lists(dataset: Any, index: int) -> Sample:
    part, inside = find_part(dataset, index)
    return part.__getitems__([inside])[0] if _gives_lists_only(part) else part[inside]


def is_thread_safe(dataset: Any) -> bool:
    """Return whether a data set says that threads may load its samples side by side."""
    return bool(getattr(dataset, "thread_safe", False))


def reads_stores(dataset: Any) -> bool:
    """Return whether some of a data set's samples are in a store.

    >>> reads_stores([1, 2])
    False
    """
    return any(isinstance(part, Source) and part.reads_stores for part in whole_parts(dataset))
