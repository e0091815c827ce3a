"""Checks if a loader without balancing can go on at a ledger.

The order is the sampler's business, and a stream's its own: what is checked is what would change
the meaning of the position.
"""

from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe

from .ledger import PlainLedger, check_same, read_ledger


def is_stream(dataset: Any) -> bool:
    """Return whether each worker reads a data set from the beginning, as its own stream."""
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)


def count_samples(dataset: Any) -> int | None:
    """Return the length of a map-style dataset that has one; streams may only guess theirs."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return None
    return len(dataset)


def reads_again(ledger: PlainLedger) -> bool:
    """Return whether a stream must be read again up to the position."""
    return any(r.read and not r.over and not r.has_state for r in ledger.readers)


def read_position(loader: Any, state: Any) -> PlainLedger:
    """Return the ledger in `state`; ValueError if this loader cannot go on there."""
    ledger = read_ledger(state, PlainLedger)
    dataset = loader.dataset
    check_same(ledger, {"batch_size": loader.batch_size, "length": count_samples(dataset)})
    if isinstance(dataset, IterDataPipe) and ledger.batches:
        raise ValueError(
            f"{ledger.batches} batches of an IterDataPipe were handed out, and those that follow "
            "cannot be found again: use an IterableDataset with state_dict and load_state_dict, "
            "or begin the epoch again"
        )
    readers = max(1, loader.num_workers)
    inside = any(reader.read and not reader.over for reader in ledger.readers)
    if is_stream(dataset) and inside and len(ledger.readers) != readers:
        raise ValueError(
            f"{len(ledger.readers)} readers were each at a place of their own in the stream, and "
            f"this loader has {readers}: resume with num_workers={len(ledger.readers)}, or save "
            "between epochs"
        )
    return ledger
