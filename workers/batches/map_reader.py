"""Wraps a map-style dataset: batches that lack samples, have a number, or carry its state.

With on_error="skip" a dataset may raise anything for a sample, as in the balanced loader; errors of
disk and network are tried again and then raised.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..arena.worker import this_worker
from ..sources.failures import ErrorAction, SkippedSample, classify_failure, load_with_retries
from ..sources.interface import SampleError, Source, source_name
from ..sources.offered import choose_getter, find_key_function, reads_stores
from .envelope import Envelope, StartPosition, is_stateful, pack_position, reader_number


@dataclass(frozen=True, slots=True)
class NumberedIndex:
    """The sampler's indices for one batch, and the batch's number in the sampler's order."""

    number: int
    index: Any


# Asks for nothing: the first task of a worker whose turn has not come.
NOT_YOUR_TURN = NumberedIndex(-1, None)
# What a worker says it works on while it loads several samples at a time.
SEVERAL = -1


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A dataset's samples for one batch, not collated yet, and how many they are."""

    number: int
    uncollated: Any
    holes: tuple[SkippedSample, ...] = ()
    empty: bool = False
    samples: int = 1


class MapReader(Dataset[Any]):
    """A map-style dataset, and the collate function that goes with it.

    start: states of the dataset to begin with; carries: whether envelopes carry its state.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        on_error: ErrorAction,
        start: StartPosition,
        carries: bool,
    ) -> None:
        self.dataset = dataset
        self._get = choose_getter(dataset)
        self._collate_fn = collate_fn
        self._on_error = on_error
        self._start = start
        self._carries = carries and is_stateful(dataset)
        self._reads_stores = reads_stores(dataset)
        # Where the worker says which sample it works on, plus 1; None: nowhere.
        self.progress: Any = None
        # In place of a worker that died with several in work: only so is it known of which.
        self._one_at_a_time = False

    def go_over(self) -> None:
        """Load the state that the dataset had after an iteration that is over."""
        self._one_at_a_time = bool(self.progress) and self.progress[reader_number()] == SEVERAL
        if self._start.find_position(reader_number()).over:
            self._load()

    def restore(self) -> None:
        """Load the state that the dataset had inside an iteration."""
        if not self._start.find_position(reader_number()).over:
            self._load()

    def _load(self) -> None:
        state = self._start.find_position(reader_number()).dataset
        if state is not None and is_stateful(self.dataset):
            self.dataset.load_state_dict(state)

    def __getitems__(self, asked: Any) -> RawBatch:
        """Load the samples of a batch."""
        if _is_no_task(asked):
            return RawBatch(-1, None, empty=True)
        number, indices = _unnumbered(asked)
        self._expect(asked)
        if self._on_error == "raise":
            if self._loads_together:
                return RawBatch(number, self._load_together(indices), samples=len(indices))
            return RawBatch(number, [self._load_index(i) for i in indices], samples=len(indices))
        loaded = self._load_batch(indices)
        samples = [sample for sample in loaded if not isinstance(sample, SkippedSample)]
        holes = tuple(hole for hole in loaded if isinstance(hole, SkippedSample))
        return RawBatch(number, samples, holes, bool(holes and not samples), len(samples))

    def __getitem__(self, asked: Any) -> RawBatch:
        """Load one sample, for a loader that makes no batches."""
        if _is_no_task(asked):
            return RawBatch(-1, None, empty=True)
        number, index = _unnumbered(asked)
        self._expect(asked)
        if self._on_error == "raise":
            return RawBatch(number, self._load_index(index))
        loaded = self._load_one(index)
        if isinstance(loaded, SkippedSample):
            return RawBatch(number, None, (loaded,), empty=True)
        return RawBatch(number, loaded)

    def _expect(self, asked: Any) -> None:
        if self._reads_stores:
            expect_tasks(self.dataset, asked, _list_samples)

    def collate(self, loaded: RawBatch) -> Envelope:
        """Return the envelope of a batch."""
        batch = None if loaded.empty else self._collate_fn(loaded.uncollated)
        position = self.position() if self._carries else None
        details = loaded.holes, loaded.empty, position, loaded.samples
        return Envelope(batch, loaded.number, reader_number(), *details)

    def position(self) -> bytes:
        """Return the state of the dataset, packed."""
        return pack_position(None, self.dataset)

    @property
    def _loads_together(self) -> bool:
        """Return whether the dataset is asked for the samples of a batch at once, as by torch."""
        return not self._one_at_a_time and bool(getattr(self.dataset, "__getitems__", None))

    def _load_index(self, index: Any) -> Any:
        """Return a sample, and say meanwhile which one it is."""
        mark = index + 1 if type(index) is int else 0
        return self._load_noting(lambda: self._get(self.dataset, index), mark)

    def _load_together(self, indices: Sequence[Any]) -> Any:
        return self._load_noting(lambda: self.dataset.__getitems__(indices), SEVERAL)

    def _load_noting(self, load: Callable[[], Any], mark: int) -> Any:
        """Load, and say meanwhile what is in work."""
        if self.progress is None:
            return load()
        worker = reader_number()
        self.progress[worker] = mark
        try:
            return load()
        finally:
            self.progress[worker] = 0

    def _load_batch(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Load a batch at once if the dataset can do that; if it fails, load one by one."""
        if self._loads_together:
            try:
                samples: Sequence[Any] = self._load_together(indices)
            except Exception:
                return [self._load_one(index) for index in indices]
            if not any(isinstance(sample, SampleError) for sample in samples):
                return samples
        return [self._load_one(index) for index in indices]

    def _load_one(self, index: Any) -> Any:
        """Return a sample, or the hole in its place."""
        dataset = self.dataset
        key = str(find_key_function(dataset)(index))

        def load() -> Any:
            sample = self._load_index(index)
            if isinstance(sample, SampleError):
                raise sample
            return sample

        def place() -> str:
            return f"sample {key!r} of {source_name(dataset)}"

        try:
            return load_with_retries(load, time.sleep, source=place)
        except Exception as error:
            # A disk that fails says nothing about the sample: it is no hole.
            if classify_failure(error) == "io":
                raise
            file = dataset.locate_file(index) if isinstance(dataset, Source) else ""
            return SkippedSample.from_error(error, key, file)


def _list_samples(asked: Any) -> list[tuple[int, bool]]:
    """Return the samples of a task that have numbers."""
    indices = () if _is_no_task(asked) else _unnumbered(asked)[1]
    several = indices if isinstance(indices, list | tuple) else [indices]
    return [(int(index), False) for index in several if isinstance(index, int | np.integer)]


def _is_no_task(asked: Any) -> bool:
    return isinstance(asked, NumberedIndex) and asked == NOT_YOUR_TURN


def _unnumbered(asked: Any) -> tuple[int, Any]:
    return (asked.number, asked.index) if isinstance(asked, NumberedIndex) else (-1, asked)


# Names the samples of a task, and whether they are only probed.
ListSamples = Callable[[Any], Iterable[tuple[int, bool]]]


def expect_tasks(source: Any, task: Any, lister: ListSamples, more: Iterable[Any] = ()) -> None:
    """Begin to read the samples of a task and of the next ones, which `more` are."""
    from ..stores.files import expect_samples  # what is local does without

    worker = this_worker()
    waiting = () if worker is None or worker.tasks is None else worker.tasks.waiting()
    # torch's other messages to a worker are no pairs
    queued = (pair[1] for pair in waiting if isinstance(pair, tuple) and len(pair) == 2)
    tasks = [task, *more, *queued]
    expect_samples(source, (sample for upcoming in tasks for sample in lister(upcoming)))
