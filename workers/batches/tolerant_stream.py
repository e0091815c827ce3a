"""Leaves the samples of a stream out that cannot be used: on_error "skip" and "refill".

A stream (an IterableDataset) reports such a sample by a SampleError: its iterator yields it in the
sample's place, or raises it from `__next__`. A generator ends when it raises, and the samples after
it would be lost silently; that is an error which asks to yield it instead.
"""

import inspect
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

from ..sources.failures import SkippedSample
from ..sources.interface import SampleError

# A stream in which this many in a row cannot be used is broken as a whole.
MOST_IN_A_ROW = 10_000


class Item(NamedTuple):
    """A place in a batch: a sample if it `has_sample`, and the samples left out before it.

    last: there is no place for a sample here, only holes at the end of the stream.
    """

    sample: Any
    holes: tuple[SkippedSample, ...] = ()
    has_sample: bool = True
    last: bool = False


class TolerantStream:
    """An iterator over the items of a stream.

    With `refill` an item is a sample with the holes before it; without, a hole is an item.
    """

    def __init__(self, source: Iterator[Any], refill: bool) -> None:
        self._source = source
        self._refill = refill
        self._in_a_row = 0
        self._ended = False
        # The last error, if a generator raised it: if the stream ends now, that is why.
        self._suspect: SampleError | None = None

    def __iter__(self) -> "TolerantStream":
        return self

    def __next__(self) -> Item:
        """Return the next item; RuntimeError where the stream is broken as a whole."""
        if self._ended:
            raise StopIteration
        holes = list[SkippedSample]()
        while True:
            try:
                sample = self._next()
            except StopIteration:
                self._ended = True
                if not holes:
                    raise
                return Item(None, tuple(holes), has_sample=False, last=True)
            if not isinstance(sample, SampleError):
                self._in_a_row = 0
                return Item(sample, tuple(holes))
            holes.append(SkippedSample(sample.key, sample.reason, "data", sample.source))
            self._count(sample)
            if not self._refill:
                return Item(None, tuple(holes), has_sample=False)

    def _next(self) -> Any:
        """Return the next sample, or the SampleError in its place."""
        try:
            sample = next(self._source)
        except StopIteration:
            if self._suspect is not None:
                raise RuntimeError(_explain_end(self._suspect)) from self._suspect
            raise
        except SampleError as error:
            self._suspect = error if left_a_generator(error.__traceback__) else None
            return error
        self._suspect = None
        return sample

    def _count(self, last: SampleError) -> None:
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise RuntimeError(
                f"{self._in_a_row} samples in a row cannot be used, the last: {last}: is all of "
                "the stream broken?"
            )


def left_a_generator(traceback: TracebackType | None) -> bool:
    """Return whether an error was raised by a generator, which has ended with it."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            return True
        traceback = traceback.tb_next
    return False


def _explain_end(error: SampleError) -> str:
    return (
        f"the stream has ended at sample {error.key!r} ({error.reason}): a generator raised "
        "the SampleError, and ends when it raises; let it yield the SampleError in the sample's "
        "place, or iterate with a class that has __next__"
    )
