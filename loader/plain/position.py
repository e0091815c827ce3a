"""Checks that a loader can go on at a ledger, and asks a sampler for its state: on request only."""

import pickle
from numbers import Integral
from typing import Any

from torch.utils.data import IterDataPipe, SequentialSampler

from ...workers.batches.envelope import read_state
from ..resume.ledger import PlainLedger, SamplerState, check_same, check_same_data, read_ledger
from .order import (
    drawing_sampler,
    inner_sampler,
    is_stream,
    known_data,
    own_shuffler,
    read_batch_size,
    unpack_state,
)


def read_position(loader: Any, state: Any, growing: bool = False) -> PlainLedger:
    """Return the ledger in `state`; ValueError if this loader cannot go on there.

    growing: whether the data may have become more since.
    """
    ledger = read_ledger(state, PlainLedger)
    check_same(ledger, {"batch_size": read_batch_size(loader)})
    _check_readers(ledger, loader)
    _check_order(ledger, loader)
    for text in ledger.generators:
        unpack_state(text)
    why_not = _describe_growth_obstacle(ledger, loader)
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


def _describe_growth_obstacle(ledger: PlainLedger, loader: Any) -> str:
    """Return why the position cannot be gone on from in data that have grown, "" if it can."""
    if not ledger.batches and not ledger.readers:
        return ""
    if type(inner_sampler(loader._index_sampler)) is not SequentialSampler:
        return "a sampler's order inside an epoch is another with more samples"
    size = 1 if loader.batch_sampler is None else loader.batch_sampler.batch_size
    handed_out = ledger.batches + len(ledger.waiting)
    is_last = handed_out * size > (ledger.samples or 0)
    return "its epoch has had its last batch" if is_last else ""


def _check_order(ledger: PlainLedger, loader: Any) -> None:
    """Raise ValueError for a position in the order of another sampler, or beyond its end.

    What a sampler is seeded with is compared when it begins: see plain/order.py.
    """
    if not ledger.batches or ledger.order is None or ledger.sampler is not None:
        return
    sampler = inner_sampler(loader._index_sampler)
    now, handed_out = type(sampler).__name__, ledger.batches + len(ledger.waiting)
    if ledger.order.partition("(")[0] != now:
        raise ValueError(
            f"ledger.order was {ledger.order} and is {now}: {ledger.batches} batches were handed "
            "out in that order; resume with the same sampler and shuffle=, or begin the epoch again"
        )
    if own_shuffler(drawing_sampler(sampler)) is not None and ledger.seed is None:
        raise ValueError(
            f"ledger.seed is None, and the order was {ledger.order}: the default shuffle needs a "
            "seed; resume with the same sampler and generator=, or begin the epoch again"
        )
    if now in ("SequentialSampler", "RandomSampler") and handed_out > len(loader._index_sampler):
        raise ValueError(
            f"ledger.batches is {ledger.batches}, allowed are 0 to {len(loader._index_sampler)}"
        )


def state_of_sampler(current: Any) -> SamplerState | None:
    """Return the state of the sampler of an Iteration, if it has one: it is asked for it now."""
    is_over = current.is_over
    if current.sampler is not None:
        sampler, iterator = map(read_state, current.sampler)
    elif (before := current.start.sampler) is not None:
        sampler, iterator, is_over = before.sampler, before.iterator, before.is_over
    else:
        return None
    drawn = tuple(_plain_index(batch) for _, batch in sorted(current.pending.items()))
    # as it is now: states may be changed in place afterwards
    state = SamplerState(sampler, iterator, drawn, is_over)
    copied: SamplerState = pickle.loads(pickle.dumps(state))
    return copied


def _plain_index(index: Any) -> Any:
    """Return the index of a sample, or a list of them, with numbers as JSON has them."""
    if type(index) is list:
        return [_plain_index(number) for number in index]
    return int(index) if isinstance(index, Integral) else index
