"""Wraps a map-style dataset: batches that lack samples, have a number, or carry its state.

With on_error="skip" a dataset may raise anything for a sample, as in the balanced loader; errors of
disk and network are tried again and then raised.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from ..sources.failures import OnError, SkippedSample, kind_of, load_with_retries
from ..sources.interface import SampleError, file_of, getter_of, source_name
from .envelope import (
    Envelope,
    ReaderPosition,
    StartPosition,
    is_stateful,
    reader_number,
    state_of,
)


@dataclass(frozen=True, slots=True)
class NumberedIndex:
    """The sampler's indices for one batch, and the batch's number in the sampler's order."""

    number: int
    index: Any


# Asks for nothing: the first task of a worker whose turn has not come.
NOT_YOUR_TURN = NumberedIndex(-1, None)
# What a worker says it works on while it loads several samples at a time, in threads.
SEVERAL = -1


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A dataset's samples for one batch, before they are collated."""

    number: int
    found: Any
    holes: tuple[SkippedSample, ...] = ()
    empty: bool = False


class MapReader(Dataset[Any]):
    """A map-style dataset, and the collate function that goes with it.

    start: states of the dataset to begin with; carries: whether envelopes carry its state.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        on_error: OnError,
        start: StartPosition,
        carries: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.dataset = dataset
        self._get = getter_of(dataset)
        self._collate_fn = collate_fn
        self._on_error = on_error
        self._start = start
        self._carries = carries and is_stateful(dataset)
        self._sleep = sleep
        # Where the worker says which sample it works on, plus 1; None: nobody asks.
        self.progress: Any = None

    def go_over(self) -> None:
        """Load the state that the dataset had after an iteration that is over."""
        if self._start.of(reader_number()).over:
            self._load()

    def restore(self) -> None:
        """Load the state that the dataset had inside an iteration."""
        if not self._start.of(reader_number()).over:
            self._load()

    def _load(self) -> None:
        state = self._start.of(reader_number()).dataset
        if state is not None and is_stateful(self.dataset):
            self.dataset.load_state_dict(state)

    def __getitems__(self, asked: Any) -> LoadedBatch:
        """Load the samples of a batch."""
        if _is_no_task(asked):
            return LoadedBatch(-1, None, empty=True)
        number, indices = _unnumbered(asked)
        if self._on_error == "raise":
            if self.progress is not None and not getattr(self.dataset, "__getitems__", None):
                return LoadedBatch(number, [self._watched(index) for index in indices])
            return LoadedBatch(number, _load_together(self.dataset, indices))
        found = self._together(indices)
        samples = [each for each in found if not isinstance(each, SkippedSample)]
        holes = tuple(each for each in found if isinstance(each, SkippedSample))
        return LoadedBatch(number, samples, holes, empty=bool(holes and not samples))

    def __getitem__(self, asked: Any) -> LoadedBatch:
        """Load one sample, for a loader that makes no batches."""
        if _is_no_task(asked):
            return LoadedBatch(-1, None, empty=True)
        number, index = _unnumbered(asked)
        if self._on_error == "raise":
            return LoadedBatch(number, self._watched(index))
        found = self._one(index)
        if isinstance(found, SkippedSample):
            return LoadedBatch(number, None, (found,), empty=True)
        return LoadedBatch(number, found)

    def collate(self, loaded: LoadedBatch) -> Envelope:
        """Return the envelope of a batch."""
        batch = None if loaded.empty else self._collate_fn(loaded.found)
        position = self.position().pack() if self._carries else None
        return Envelope(batch, loaded.number, reader_number(), loaded.holes, loaded.empty, position)

    def position(self) -> ReaderPosition:
        """Return the state of the dataset."""
        return ReaderPosition(dataset=state_of(self.dataset))

    def _watched(self, index: Any) -> Any:
        """Return a sample, and say meanwhile which one it is."""
        if self.progress is None or type(index) is not int:
            return self._get(self.dataset, index)
        worker = reader_number()
        self.progress[worker] = index + 1
        try:
            return self._get(self.dataset, index)
        finally:
            self.progress[worker] = 0

    def _together(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Load a batch at once if the dataset can do that; if it fails, load one by one."""
        if getattr(self.dataset, "__getitems__", None):
            try:
                found: Sequence[Any] = self.dataset.__getitems__(indices)
            except Exception:
                return [self._one(index) for index in indices]
            if not any(isinstance(each, SampleError) for each in found):
                return found
        return [self._one(index) for index in indices]

    def _one(self, index: Any) -> Any:
        """Return a sample, or the hole in its place."""
        name, dataset = getattr(self.dataset, "key", str), self.dataset
        key = str(name(index)) if callable(name) else str(index)

        def load() -> Any:
            found = self._watched(index)
            if isinstance(found, SampleError):
                raise found
            return found

        def place() -> str:
            return f"sample {key!r} of {source_name(dataset)}"

        try:
            return load_with_retries(load, self._sleep, source=place)
        except Exception as error:
            # A disk that fails says nothing about the sample: it is no hole.
            if kind_of(error) == "io":
                raise
            return SkippedSample.from_error(error, key, file_of(dataset, index))


def _is_no_task(asked: Any) -> bool:
    return isinstance(asked, NumberedIndex) and asked == NOT_YOUR_TURN


def _unnumbered(asked: Any) -> tuple[int, Any]:
    return (asked.number, asked.index) if isinstance(asked, NumberedIndex) else (-1, asked)


def _load_together(dataset: Any, indices: Any) -> Any:
    """Load a batch as torch's fetcher does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]
