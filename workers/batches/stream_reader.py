"""Wraps an IterableDataset so that each batch says how far its reader has come.

torch's fetcher iterates a `StreamReader` and collates with its `collate`. Where no sample may be
left out, the iterator it gets is the data set's own: only the collating is ours, so that a sample
costs nothing more. The position after a batch is the state of the iterator and of the data set if
they have a state_dict (as torchdata's StatefulDataLoader defines), and the number of items read,
by which any other stream is read again.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from ..sources.failures import OnError
from .envelope import (
    Envelope,
    ReaderPosition,
    StartPosition,
    is_stateful,
    reader_number,
    state_of,
)
from .tolerant_stream import Item, TolerantStream

# Takes the place of a sample in the only batch of a reader whose turn has not come.
_NOT_MY_TURN = object()


class StreamReader(IterableDataset[Any]):
    """A stream, and the collate function that goes with it.

    batch_size: None if the loader does not make batches; drop_last: whether a short last batch is
    dropped, which torch cannot do for batches with holes; start: where the first iteration begins;
    carries: whether envelopes carry the position (in the trainer `position()` is asked instead).
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batch_size: int | None,
        drop_last: bool,
        on_error: OnError,
        start: StartPosition,
        carries: bool,
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._on_error = on_error
        self._start = start
        self._carries = carries
        self._iterator: Any = None
        self._read = 0
        self._ended = False

    def __repr__(self) -> str:
        return repr(self.dataset)  # torch's warnings name the data set

    def go_over(self) -> None:
        """Bring data set and generators to where they were after an iteration that is over."""
        at = self._start.of(reader_number())
        if not at.over or not at.has_state:
            return
        self._load(at)
        if at.iterator is None and at.ended:
            return
        before = iter(self.dataset)
        if at.iterator is not None:
            before.load_state_dict(at.iterator)
        if not at.ended:
            # The position was taken before the reader found that there is no more.
            for _ in before:
                pass

    def restore(self) -> None:
        """Do nothing: a stream is restored when its iterator is made."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator from where this reader is to begin; later ones begin at the start."""
        start, self._start = self._start, StartPosition()
        number = reader_number()
        at = start.of(number)
        if at.over:
            at = ReaderPosition()
        self._load(at)
        self._iterator, self._read, self._ended = None, at.read, at.ended
        if at.ended:
            return iter(())
        items = self._items(at)
        return itertools.chain([_NOT_MY_TURN], items) if number < start.turn else items

    def _load(self, at: ReaderPosition) -> None:
        if at.dataset is not None and is_stateful(self.dataset):
            self.dataset.load_state_dict(at.dataset)

    def _items(self, at: ReaderPosition) -> Iterator[Any]:
        source = self._iterator = iter(self.dataset)
        if at.iterator is not None and is_stateful(source):
            source.load_state_dict(at.iterator)
        items: Iterator[Any] = source
        if self._on_error != "raise":
            items = TolerantStream(source, refill=self._on_error == "refill")
        if not at.has_state:
            _read_again(items, at.read)
        return items

    def collate(self, data: Any) -> Envelope:
        """Return the envelope of a batch; of a sample, if the loader makes no batches."""
        items: list[Any] = data if self._batch_size is not None else [data]
        if items and items[0] is _NOT_MY_TURN:
            return Envelope(None, reader=reader_number(), empty=True)
        if self._on_error != "raise":
            return self._collate_items(items)
        self._count(len(items))
        return self._envelope(self._collate_fn(data))

    def _collate_items(self, items: list[Item]) -> Envelope:
        taken = sum(not item.last for item in items)
        self._count(taken)
        samples = [item.sample for item in items if item.found]
        holes = tuple(itertools.chain.from_iterable(item.holes for item in items))
        if not samples or (self._drop_last and self._ended):
            return self._envelope(None, holes)._replace(empty=True)
        batch = samples if self._batch_size is not None else samples[0]
        return self._envelope(self._collate_fn(batch), holes)

    def _count(self, taken: int) -> None:
        self._read += taken
        self._ended = self._batch_size is not None and taken < self._batch_size

    def _envelope(self, batch: Any, holes: tuple[Any, ...] = ()) -> Envelope:
        position = self.position().pack() if self._carries else None
        return Envelope(batch, reader=reader_number(), holes=holes, position=position)

    def position(self) -> ReaderPosition:
        """Return how far this reader is; what is the iterator is not stated twice."""
        both = self._iterator is self.dataset
        return ReaderPosition(
            read=self._read,
            ended=self._ended,
            iterator=state_of(self._iterator),
            dataset=None if both else state_of(self.dataset),
        )


def _read_again(items: Iterator[Any], count: int) -> None:
    """Pass over what was handed out; ValueError for a stream that has become shorter."""
    again = itertools.islice(items, count)
    found = sum(not (isinstance(item, Item) and item.last) for item in again)
    if found < count:
        raise ValueError(
            f"the ledger says that {count} samples of this stream were read, and it has only "
            f"{found}: resume with the same stream, or begin the epoch again"
        )
