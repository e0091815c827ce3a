"""Prepares a worker whose data set is wrapped, before torch makes the worker's fetcher."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info


def prepare_worker(reader: Any, init_fn: Callable[[int], None] | None, number: int) -> None:
    """Show the user's data set to get_worker_info(), run the user's worker_init_fn, restore."""
    info: Any = get_worker_info()
    # The record is frozen for its readers; there is no public way to make another one.
    object.__setattr__(info, "dataset", reader.dataset)
    if init_fn is not None:
        init_fn(number)
    reader.go_over()
    reader.restore()
