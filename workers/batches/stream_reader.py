"""Wraps an IterableDataset so that each batch says how far its reader has come.

torch's fetcher iterates a `StreamReader` and collates with its `collate`. Where no sample may be
left out, the iterator it gets is the data set's own: only the collating is ours, so that a sample
costs nothing more. The position after a batch is the state of the iterator and of the data set if
they have a state_dict (as torchdata's StatefulDataLoader defines), and the number of items read,
by which any other stream is read again.

A state that was loaded into a data set stays in force in some, such as Hugging Face's: each later
iteration begins there too, and would be the rest of an epoch (datasets#7447). So the state after
the first sample is compared: where it is the same again, the data set gets the state back that it
had before any was loaded.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from ..sources.failures import ErrorAction
from .envelope import (
    Envelope,
    LoadedState,
    ReaderPosition,
    StartPosition,
    is_stateful,
    loses_samples,
    pack_position,
    read_state,
    reader_number,
)
from .tolerant_stream import Item, TolerantStream

# Takes the place of a sample in the only batch of a reader whose turn has not come.
_NOT_MY_TURN = object()
# What next() returns at the end. Nothing here calls iter() on a data set's iterator, as `for` does:
# a data set that is its own iterator begins anew.
_NOTHING = object()


class StreamReader(IterableDataset[Any]):
    """A stream, and the collate function that goes with it.

    batch_size: None if the loader does not make batches; drop_last: whether a short last batch is
    dropped, which torch cannot do for batches with holes; start: where the first iteration begins;
    carries: whether envelopes carry the position (in the trainer `position()` is asked instead);
    loaded: of this data set, which in the trainer outlives its readers.
    """

    # The epoch that set_epoch() chose since workers that stay were started; -1: none.
    epoch: Sequence[int] = (-1,)

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        batch_size: int | None,
        drop_last: bool,
        on_error: ErrorAction,
        start: StartPosition,
        carries: bool,
        loaded: LoadedState,
    ) -> None:
        self.dataset = dataset
        self.loaded = loaded
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
        at = self._find_start()
        if at.over and at.has_state:
            self._end(at)

    def _end(self, at: ReaderPosition) -> None:
        """Load the state of an iteration that is over, or has nothing more to give."""
        self._load(at.dataset)
        if at.iterator is None and at.ended:
            # Some data sets are at their end then, until another state is loaded.
            self.loaded.follows_end = at.dataset is not None
            return
        before = self._source(at)
        if not at.ended:
            # The position was taken before the reader found that there is no more.
            while next(before, _NOTHING) is not _NOTHING:
                pass

    def restore(self) -> None:
        """Do nothing: a stream is restored when its iterator is made."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator from where this reader is to begin; later ones begin at the start."""
        number, turn = reader_number(), self._start.turn
        there, at = self._start.find_position(number), self._find_start()
        self._start = StartPosition()
        if self.epoch[0] >= 0:
            self.dataset.set_epoch(self.epoch[0])
        if at.over:
            at = ReaderPosition()
        if at.ended:
            self._end(at)
        else:
            self._load(at.dataset)
        if not there.over:
            _check_epoch(self.dataset, there.dataset)
        self._iterator, self._read, self._ended = None, at.read, at.ended
        if at.ended:
            return iter(())
        items = self._items(at)
        return itertools.chain([_NOT_MY_TURN], items) if number < turn else items

    def _find_start(self) -> ReaderPosition:
        """Return where to begin, without the state of a data set that would lose samples by it."""
        at = self._start.find_position(reader_number())
        return replace(at, dataset=None) if loses_samples(self.dataset) else at

    def _load(self, state: Any) -> None:
        if state is None or not is_stateful(self.dataset):
            return
        if self.loaded.first is None:
            self.loaded.first = self._state_now()
        self.dataset.load_state_dict(state)

    def _state_now(self) -> Any:
        try:
            return read_state(self.dataset)
        except Exception:  # some have none until they are iterated
            return None

    def begin_again(self) -> Iterator[Any]:
        """Return an iterator over all of a data set that went on at the state loaded last."""
        if self.loaded.first is None:
            raise ValueError(
                f"{type(self.dataset).__name__} begins each epoch at the state that was loaded "
                "into it: let its __iter__ take that once, or state_dict() work before it"
            )
        self.dataset.load_state_dict(self.loaded.first)
        return self.iterated()

    def iterated(self) -> Iterator[Any]:
        """Return the data set's iterator."""
        iterator: Iterator[Any] = iter(self.dataset)
        self._iterator = iterator
        return iterator

    def _items(self, at: ReaderPosition) -> Iterator[Any]:
        items = self._source(at)
        if self._on_error != "raise":
            items = TolerantStream(items, refill=self._on_error == "refill")
        if not at.has_state:
            _read_again(items, at.read)
        return items

    def _source(self, at: ReaderPosition) -> Iterator[Any]:
        """Return the data set's samples from a position on; its state has been loaded."""
        source: Any = self.iterated()
        is_own = source is self.dataset
        if at.iterator is not None and is_stateful(source):
            self._load(at.iterator) if is_own else source.load_state_dict(at.iterator)
        was_loaded = at.dataset is not None or (is_own and at.iterator is not None)
        # Of the first iteration after an end, and only of that.
        follows_end, self.loaded.follows_end = self.loaded.follows_end and not was_loaded, False
        looks = was_loaded or follows_end or self.loaded.begun is not None
        return _Begun(self, source, was_loaded, follows_end) if looks else source

    def collate(self, data: Any) -> Envelope:
        """Return the envelope of a batch; of a sample, if the loader makes no batches."""
        items: list[Any] = data if self._batch_size is not None else [data]
        if items and items[0] is _NOT_MY_TURN:
            return Envelope(None, reader=reader_number(), empty=True)
        if self._on_error != "raise":
            return self._collate_items(items)
        self._count(len(items))
        return self._envelope(self._collate_fn(data), len(items))

    def _collate_items(self, items: list[Item]) -> Envelope:
        taken = sum(not item.last for item in items)
        self._count(taken)
        samples = [item.sample for item in items if item.has_sample]
        holes = tuple(itertools.chain.from_iterable(item.holes for item in items))
        if not samples or (self._drop_last and self._ended):
            return self._envelope(None, 0, holes)._replace(empty=True)
        batch = samples if self._batch_size is not None else samples[0]
        return self._envelope(self._collate_fn(batch), len(samples), holes)

    def count(self, taken: int) -> None:
        """Note that items were taken from the iterator, to be collated elsewhere or here."""
        self._read += taken

    def _count(self, taken: int) -> None:
        self.count(taken)
        self._ended = self._batch_size is not None and taken < self._batch_size

    def _envelope(self, batch: Any, samples: int, holes: tuple[Any, ...] = ()) -> Envelope:
        position = self.position() if self._carries else None
        number = reader_number()
        return Envelope(batch, reader=number, holes=holes, position=position, samples=samples)

    def position(self) -> bytes:
        """Return how far this reader is, packed; what is the iterator is not stated twice."""
        dataset = None if self._iterator is self.dataset else self.dataset
        return pack_position(self._iterator, dataset, self._read, self._ended)


class _Begun:
    """An iterator over a data set's samples, which looks where it has begun; see the top.

    was_loaded: whether a state was loaded for it; follows_end: or that of an end, before it.
    """

    def __init__(
        self, reader: StreamReader, source: Iterator[Any], was_loaded: bool, follows_end: bool
    ) -> None:
        self._reader, self._source, self._was_loaded = reader, source, was_loaded
        self._follows_end = follows_end
        self._has_looked = False

    def __iter__(self) -> "_Begun":
        return self

    def __next__(self) -> Any:
        if self._has_looked:
            return next(self._source)
        first = next(self._source, _NOTHING)
        self._has_looked = True
        if self._follows_end and first is _NOTHING:
            # The end was all that it took over, or it stays there.
            self._source = self._reader.iterated()
            first = next(self._source, _NOTHING)
        is_at_end = self._follows_end and first is _NOTHING
        if not self._begins_as_before(first is not _NOTHING) and not is_at_end:
            if first is _NOTHING:
                raise StopIteration
            return first
        self._source = self._reader.begin_again()
        return next(self._source)

    def _begins_as_before(self, has_first: bool) -> bool:
        """Return whether an iteration without a loaded state begins as the one before did."""
        loaded = self._reader.loaded
        begun = _text([has_first, read_state(self._reader.dataset)])
        before, loaded.begun = loaded.begun, begun if self._was_loaded else None
        return not self._was_loaded and begun == before


def _text(state: Any) -> str:
    """Return a state as text: the same for equal states, tuples as lists."""

    def listed(leaf: Any) -> Any:
        return leaf.tolist() if hasattr(leaf, "tolist") else repr(leaf)

    return json.dumps(state, default=listed, skipkeys=True)


def _check_epoch(dataset: Any, state: Any) -> None:
    """Raise ValueError for a data set that is in another epoch than a state: it ignores that."""
    then = state.get("epoch") if isinstance(state, dict) else None
    now = getattr(dataset, "epoch", None)
    if hasattr(dataset, "set_epoch") and None not in (then, now) and then != now:
        raise ValueError(
            f"the ledger's stream was in epoch {then}, and {type(dataset).__name__} is in epoch "
            f"{now}: call its set_epoch({then}) before it is iterated, or begin the epoch again"
        )


def _read_again(items: Iterator[Any], count: int) -> None:
    """Pass over what was handed out; ValueError for a stream that has become shorter."""
    again = itertools.islice(items, count)
    items_read = sum(not (isinstance(item, Item) and item.last) for item in again)
    if items_read < count:
        raise ValueError(
            f"the ledger says that {count} samples of this stream were read, and it has only "
            f"{items_read}: resume with the same stream, or begin the epoch again"
        )
