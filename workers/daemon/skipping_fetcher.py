"""Fetches batches that may lack samples: on_error "skip" and "refill" without balancing.

A stream (an IterableDataset) reports a sample that cannot be used by a SampleError: its iterator
yields it in the sample's place, or raises it from `__next__`. A generator ends when it raises, and
the samples after it would be lost silently; that is an error which asks to yield it instead.
A map-style dataset may raise anything, as in the balanced loader; errors of disk and network are
tried again and then raised.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch.utils.data import IterableDataset

from ...balancer.protocol.error_policy import OnError
from ..sources.failures import SkippedSample, kind_of, load_with_retries
from ..sources.interface import SampleError, source_name

# A stream in which this many in a row cannot be used is broken as a whole.
MOST_IN_A_ROW = 10_000


@dataclass(frozen=True, slots=True)
class Fetched:
    """A collated batch and the samples that are missing in it; `empty`: all of them are."""

    batch: Any
    holes: tuple[SkippedSample, ...] = ()
    empty: bool = False


def tolerant(
    fetcher: Any, on_error: OnError, sleep: Callable[[float], None] = time.sleep
) -> "StreamFetcher | MapFetcher":
    """Return a fetcher to use instead of torch's, with its data set and collate function."""
    if isinstance(fetcher.dataset, IterableDataset):
        return StreamFetcher(fetcher, refill=on_error == "refill")
    return MapFetcher(fetcher, sleep)


class StreamFetcher:
    """Batches of a stream: smaller by what is missing, or refilled with what comes next."""

    def __init__(self, fetcher: Any, refill: bool) -> None:
        self._torchs = fetcher
        self._refill = refill
        self._in_a_row = 0
        self._ended = False
        # The last error, if a generator raised it: if the stream ends now, that is why.
        self._suspect: SampleError | None = None

    def fetch(self, index: Any) -> Fetched:
        """Return the next batch (its size is that of `index`); StopIteration at the end."""
        if self._ended:
            raise StopIteration
        wanted = len(index) if self._torchs.auto_collation else 1
        samples, holes = self._take(wanted)
        full = len(samples) + (0 if self._refill else len(holes)) >= wanted
        if not samples or (self._torchs.drop_last and not full):
            if not holes:
                raise StopIteration
            return Fetched(None, tuple(holes), empty=True)
        batch = samples if self._torchs.auto_collation else samples[0]
        return Fetched(self._torchs.collate_fn(batch), tuple(holes))

    def _take(self, wanted: int) -> tuple[list[Any], list[SkippedSample]]:
        samples, holes = list[Any](), list[SkippedSample]()
        while len(samples) + (0 if self._refill else len(holes)) < wanted:
            try:
                found = self._next()
            except StopIteration:
                self._ended = True
                break
            if isinstance(found, SampleError):
                holes.append(SkippedSample(found.key, found.reason, "data"))
                self._count(found)
            else:
                samples.append(found)
                self._in_a_row = 0
        return samples, holes

    def _next(self) -> Any:
        """Return the next sample, or the SampleError in its place."""
        try:
            found = next(self._torchs.dataset_iter)
        except StopIteration:
            if self._suspect is not None:
                raise RuntimeError(_ended_by(self._suspect)) from self._suspect
            raise
        except SampleError as error:
            self._suspect = error if left_a_generator(error.__traceback__) else None
            return error
        self._suspect = None
        return found

    def _count(self, last: SampleError) -> None:
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise RuntimeError(
                f"{self._in_a_row} samples in a row cannot be used, the last: {last}: is all of "
                "the stream broken?"
            )


class MapFetcher:
    """Batches of a map-style dataset: smaller by what is missing."""

    def __init__(self, fetcher: Any, sleep: Callable[[float], None]) -> None:
        self._torchs = fetcher
        self._dataset = fetcher.dataset
        self._sleep = sleep

    def fetch(self, index: Any) -> Fetched:
        """Return the batch of these indices, or the sample of this index."""
        if not self._torchs.auto_collation:
            found = self._one(index)
            if isinstance(found, SkippedSample):
                return Fetched(None, (found,), empty=True)
            return Fetched(self._torchs.collate_fn(found))
        found_all = self._together(index)
        samples = [found for found in found_all if not isinstance(found, SkippedSample)]
        holes = tuple(found for found in found_all if isinstance(found, SkippedSample))
        if not samples and holes:
            return Fetched(None, holes, empty=True)
        return Fetched(self._torchs.collate_fn(samples), holes)

    def _together(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Load a batch at once if the dataset can do that; if it fails, load one by one."""
        getitems = getattr(self._dataset, "__getitems__", None)
        if getitems:
            try:
                found: Sequence[Any] = getitems(indices)
            except Exception:
                return [self._one(index) for index in indices]
            if not any(isinstance(each, SampleError) for each in found):
                return found
        return [self._one(index) for index in indices]

    def _one(self, index: Any) -> Any:
        """Return a sample, or the hole in its place."""
        name, dataset = getattr(self._dataset, "key", str), self._dataset
        key = str(name(index)) if callable(name) else str(index)

        def load() -> Any:
            found = dataset[index]
            if isinstance(found, SampleError):
                raise found
            return found

        place = f"sample {key!r} of {source_name(dataset)}"
        try:
            return load_with_retries(load, self._sleep, source=place)
        except Exception as error:
            # A disk that fails says nothing about the sample: it is no hole.
            if kind_of(error) == "io":
                raise
            return SkippedSample.from_error(error, key)


def left_a_generator(traceback: TracebackType | None) -> bool:
    """Return whether an error was raised by a generator, which has ended with it."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        traceback = traceback.tb_next
    return False


def _ended_by(error: SampleError) -> str:
    return (
        f"the stream has ended at sample {error.key!r} ({error.reason}): a generator raised "
        "the SampleError, and ends when it raises; let it yield the SampleError in the sample's "
        "place, or iterate with a class that has __next__"
    )
