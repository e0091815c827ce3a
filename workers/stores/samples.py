"""Says to the stores that samples are in which ones are next; samples of local files need nothing.

A source some of whose samples are in a store has `reads_stores`, true, and
`stored_ranges(index, headers)`: what is read there of a sample, with `headers` when it is probed.
"""

from collections.abc import Iterable
from typing import Any

from ..sources.data_identity import part_at, whole_parts
from ..sources.interface import PlainSource


def reads_stores(source: Any) -> bool:
    """Return whether some of a source's samples are in a store.

    >>> reads_stores([1, 2])
    False
    """
    # Nobody else's attribute `dataset` is looked at: it may open a file, and loops fork later.
    parts = whole_parts(source.dataset if isinstance(source, PlainSource) else source)
    return any(getattr(part, "reads_stores", False) for part in parts)


def stored_ranges(source: Any, index: int, headers: bool = False) -> list[Any]:
    """Return what is read of a sample in a store, as `expect_ranges` takes it; nothing elsewhere.

    >>> stored_ranges([1, 2], 0)
    []
    """
    part, inside = part_at(source, index)
    if (wrapped := getattr(part, "dataset", None)) is not None:
        return stored_ranges(wrapped, inside, headers)
    offered = getattr(part, "stored_ranges", None)
    return [] if offered is None else list(offered(inside, headers))


def expect_samples(source: Any, samples: Iterable[tuple[int, bool]]) -> None:
    """Begin to read samples (index, whether it is probed): they are next, in this order."""
    from .files import expect_ranges  # what is local does without

    expect_ranges(
        each for index, headers in samples for each in stored_ranges(source, index, headers)
    )
