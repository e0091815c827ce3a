"""Looks into torch's Subset (random_split too) and ConcatDataset, without importing torch."""

import bisect
from collections.abc import Iterator
from typing import Any


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
