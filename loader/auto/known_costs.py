"""Recognises how batches hold costs that the data say: by the fields that vary with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.options import ADD_UP
from ...workers.discovery import FoundWork, find_costs, recognise_work


def work_of_columns(
    columns: Mapping[str, Int64],
    samples: Sequence[Any],
    collate: Callable[[list[Any]], Any],
    batch_size: int,
) -> tuple[tuple[str, ...], str]:
    """Return which costs are padded, and in words how batches hold each.

    columns: the costs of the samples by name, (n,) each.
    """
    found = find_costs(samples)
    work = recognise_work(found, samples, collate, batch_size)
    measured = [found.measure(sample) for sample in samples]
    like = {name: _like(column, measured) for name, column in columns.items()}
    padded = tuple(name for name in columns if like[name] in work.padded)
    return padded, _said(list(columns), like, work)


def _like(column: np.ndarray, measured: list[dict[str, int]]) -> str:
    """Return the found resource that goes with a known cost sample by sample, "" for none."""
    for name in measured[0]:
        other = np.array([each[name] for each in measured], dtype=np.int64)
        top = int(other.argmax())
        if column[top] and other[top] and (column * other[top] == other * column[top]).all():
            return name
    return ""


def _said(names: Sequence[str], like: Mapping[str, str], work: FoundWork) -> str:
    """Return in words how batches hold the costs of some names."""
    padded = [name for name in names if like[name] in work.padded]
    constant = [name for name in names if like[name] in work.constant]
    unknown = [
        name
        for name in names
        if name not in ADD_UP and (not like[name] or like[name] in work.unrecognised)
    ]
    added = [name for name in names if name not in (*padded, *constant, *unknown)]
    kinds = (
        (padded, "padded"),
        (added, "add up"),
        (constant, "the same in every batch: planned as adding up"),
        (unknown, "not recognised in the batches: planned as adding up"),
    )
    return "; ".join(f"{', '.join(each)} {words}" for each, words in kinds if each)
