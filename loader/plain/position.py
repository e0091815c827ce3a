"""Checks if a loader without balancing can go on at a ledger.

The order is the sampler's business, and a stream's its own: what is checked is what would change
the meaning of the position.
"""

from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, IterDataPipe, SequentialSampler

from ...workers.sources.data_identity import KnownData
from ..resume.ledger import PlainLedger
from ..resume.reading import check_same, read_ledger
from ..resume.same_data import check_same_data
from .seeds import drawn_from, own_shuffler


def is_stream(dataset: Any) -> bool:
    """Return whether each worker reads a data set from the beginning, as its own stream."""
    return isinstance(dataset, IterableDataset) and not isinstance(dataset, IterDataPipe)


def known_data(dataset: Any) -> KnownData:
    """Return a dataset with its length, if it is map-style and has one; streams only guess it."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return KnownData(dataset, None)
    try:
        return KnownData(dataset, len(dataset))
    except (TypeError, NotImplementedError):  # it has the method of a base class, and no length
        return KnownData(dataset, None)


def reads_again(ledger: PlainLedger) -> bool:
    """Return whether a stream must be read again up to the position."""
    return any(r.read and not r.over and not r.has_state for r in ledger.readers)


def read_position(loader: Any, state: Any, growing: bool = False) -> PlainLedger:
    """Return the ledger in `state`; ValueError if this loader cannot go on there.

    growing: whether the data may have become more since.
    """
    ledger = read_ledger(state, PlainLedger)
    check_same(ledger, {"batch_size": loader.batch_size})
    _check_readers(ledger, loader)
    _check_order(ledger, loader)
    why_not = _why_not_grown(ledger, loader)
    check_same_data(ledger, known_data(loader.dataset), growing, why_not)
    return ledger


def _check_readers(ledger: PlainLedger, loader: Any) -> None:
    """Raise ValueError for a position in a stream that other readers cannot find again."""
    if isinstance(loader.dataset, IterDataPipe) and ledger.batches:
        raise ValueError(
            f"{ledger.batches} batches of an IterDataPipe were handed out, and those that follow "
            "cannot be found again: use an IterableDataset with state_dict and load_state_dict, "
            "or begin the epoch again"
        )
    readers = max(1, loader.num_workers)
    inside = any(reader.read and not reader.over for reader in ledger.readers)
    if is_stream(loader.dataset) and inside and len(ledger.readers) != readers:
        raise ValueError(
            f"{len(ledger.readers)} readers were each at a place of their own in the stream, and "
            f"this loader has {readers}: resume with num_workers={len(ledger.readers)}, or save "
            "between epochs"
        )


def _check_order(ledger: PlainLedger, loader: Any) -> None:
    """Raise ValueError for a position in the order of another sampler, or beyond its end.

    What a sampler is seeded with is compared when it begins: see plain/order.py.
    """
    if not ledger.batches or ledger.order is None or ledger.sampler is not None:
        return
    order, (then, now) = ledger.order, _samplers(ledger, loader)
    if then != now:
        raise ValueError(
            f"ledger.order was {order} and is {now}: {ledger.batches} batches were handed out in "
            "that order; resume with the same sampler and shuffle=, or begin the epoch again"
        )
    if own_shuffler(drawn_from(loader._index_sampler)) is not None and ledger.seed is None:
        raise ValueError("ledger.seed is None, and the order of a shuffle needs one")
    handed_out = ledger.batches + len(ledger.waiting)
    if now in ("SequentialSampler", "RandomSampler") and handed_out > len(loader._index_sampler):
        raise ValueError(
            f"ledger.batches is {ledger.batches}, allowed are 0 to {len(loader._index_sampler)}"
        )


def _samplers(ledger: PlainLedger, loader: Any) -> tuple[str, str]:
    """Return the class of the sampler that the ledger's batches were drawn from, and of ours."""
    then = str(ledger.order).partition("(")[0]
    return then, type(drawn_from(loader._index_sampler)).__name__


def _why_not_grown(ledger: PlainLedger, loader: Any) -> str:
    """Return why the position cannot be gone on from in data that have grown, "" if it can."""
    if not ledger.batches and not ledger.readers:
        return ""
    in_order = type(drawn_from(loader._index_sampler)) is SequentialSampler
    if not in_order:
        return "a sampler's order inside an epoch is another with more samples"
    size = 1 if loader.batch_sampler is None else loader.batch_sampler.batch_size
    handed_out = ledger.batches + len(ledger.waiting)
    is_last = handed_out * size > (ledger.samples or 0)
    return "its epoch has had its last batch" if is_last else ""
