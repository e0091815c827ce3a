"""Says to stores that samples are in which ones are next; samples of local files need nothing."""

from collections.abc import Iterable
from typing import Any

from ..sources.interface import Source
from ..sources.offered import part_at, whole_parts


def reads_stores(dataset: Any) -> bool:
    """Return whether some of a data set's samples are in a store.

    >>> reads_stores([1, 2])
    False
    """
    return any(isinstance(part, Source) and part.reads_stores for part in whole_parts(dataset))


def expect_samples(dataset: Any, samples: Iterable[tuple[int, bool]]) -> None:
    """Begin to read samples (index, whether it is probed): they are next, in this order."""
    from .files import expect_ranges  # what is local does without

    parts = ((*part_at(dataset, index), headers) for index, headers in samples)
    expect_ranges(
        each
        for part, inside, headers in parts
        if isinstance(part, Source)
        for each in part.stored_ranges(inside, headers)
    )
