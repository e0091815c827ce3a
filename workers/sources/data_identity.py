"""Identifies the data that a dataset holds, as far as that can be told without reading them.

A ledger holds this text and compares it: what was saved over one data set is not continued on
another. Of tar shards it is a hash of their indexes, of a Hugging Face dataset its fingerprint, of
torch's Subset and ConcatDataset one of their parts', of a list of texts or numbers some of them, of
any other dataset its class and, in a balanced loop, some of its keys; the number of samples is
compared apart. Versions of libraries and transforms are no part of it, as in `fingerprint.py`: they
may change while a training goes on. Where what samples cost decides what was delivered, the
position has a digest of that (`EpochPosition.costs`), and changed transforms show there.

Ranks compare it, too, when they meet: see `KnownData.rank_identity`.
"""

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .fingerprint import digest


def whole_parts(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that a dataset is made of, down to those that are made of none."""
    if is_subset(dataset):
        yield from whole_parts(dataset.dataset)
    elif is_concatenated(dataset):
        for part in dataset.datasets:
            yield from whole_parts(part)
    else:
        yield dataset


def part_at(dataset: Any, index: int) -> tuple[Any, int]:
    """Return the dataset, made of no others, that a sample is from, and its number in there."""
    if is_subset(dataset):
        return part_at(dataset.dataset, int(dataset.indices[index]))
    if is_concatenated(dataset):
        ends = dataset.cumulative_sizes
        part = bisect.bisect_right(ends, index)
        return part_at(dataset.datasets[part], index - (ends[part - 1] if part else 0))
    return dataset, index


def is_subset(dataset: Any) -> bool:
    """Return whether a dataset is made like torch's Subset."""
    return hasattr(dataset, "indices") and hasattr(dataset, "dataset")


def is_concatenated(dataset: Any) -> bool:
    """Return whether a dataset is made like torch's ConcatDataset."""
    return hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes")


# Keys, or indices of a subset, that are looked at: evenly spaced, the first and the last among
# them.
LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class KnownData:
    """A dataset with its number of samples, None where that is not known.

    key: a sample's name by its index, None where nobody but the data decides about keys.

    >>> KnownData(range(3), 3).identity, KnownData(range(3), 3, key=str).identity
    ('range', 'range 462179b936184005')
    """

    dataset: Any
    samples: int | None
    key: Callable[[int], str] | None = None

    @property
    def identity(self) -> str:
        """The dataset's class and, where there is one, a hash of what it holds."""
        return _identity(self.dataset, self.samples, self.key)

    @property
    def rank_identity(self) -> str:
        """The identity without what may differ between processes that have the same data.

        A Hugging Face fingerprint depends on times of files, and on chance for some functions.
        """
        return _identity(self.dataset, self.samples, self.key, has_marks=False)

    def identity_of_first(self, samples: int) -> str | None:
        """Return the identity that the first samples had by themselves; None if nobody can tell."""
        offered = getattr(self.dataset, "data_digest", None)
        if callable(offered):
            return _named(self.dataset, offered(samples))
        if isinstance(getattr(self.dataset, "_fingerprint", None), str):
            return None
        if is_subset(self.dataset) or is_concatenated(self.dataset):
            return None
        return _identity(self.dataset, samples, self.key)


def _identity(
    dataset: Any,
    samples: int | None,
    key: Callable[[int], str] | None,
    has_marks: bool = True,
) -> str:
    offered, mark = getattr(dataset, "data_digest", None), getattr(dataset, "_fingerprint", None)
    if callable(offered):
        return _named(dataset, offered())
    if isinstance(mark, str) and has_marks:
        return _named(dataset, mark)
    if is_subset(dataset):
        indices = [int(dataset.indices[each]) for each in _spread(len(dataset.indices))]
        inner = _identity(dataset.dataset, None, None, has_marks)
        return _named(dataset, digest([inner, indices]))
    if is_concatenated(dataset):
        parts = [_identity(each, None, None, has_marks) for each in dataset.datasets]
        return _named(dataset, digest(parts))
    if isinstance(dataset, list | tuple):
        # To look at these takes no loading, and draws nothing.
        some = [dataset[each] for each in _spread(len(dataset) if samples is None else samples)]
        if all(isinstance(each, str | int | float) for each in some):
            return _named(dataset, digest(some))
    # Keys name samples for good; where there are none only the class is known.
    if key is not None and samples is not None:
        return _named(dataset, digest([str(key(each)) for each in _spread(samples)]))
    return type(dataset).__qualname__


def _named(dataset: Any, mark: str) -> str:
    return f"{type(dataset).__qualname__} {mark}"


def _spread(count: int) -> list[int]:
    """Return at most LOOKED_AT numbers below `count`, evenly spaced.

    >>> _spread(3), _spread(1000)[:2], _spread(1000)[-1], len(_spread(1000))
    ([0, 1, 2], [0, 15], 999, 64)
    """
    if count <= LOOKED_AT:
        return list(range(count))
    return [each * (count - 1) // (LOOKED_AT - 1) for each in range(LOOKED_AT)]
