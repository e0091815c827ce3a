"""Exceptions that leave next() of a loop over streams at any moment: the same batches come."""

import random
import signal
import sys

import pytest

from counterpoise.loader.streams.loop import StreamLoop
from tests.loader.alarms import is_in_fork_hook
from tests.loader.streams import stream_data as made
from tests.loader.streams.stream_data import digest, loader, take

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class InterruptedAtRandomError(Exception):
    """What a signal's handler raises in the middle of next()."""


def interrupt(_number, frame):
    is_outside = frame.f_code is take_torn.__code__  # next() has returned, or was not called yet
    if not is_outside and not is_in_fork_hook(frame):
        raise InterruptedAtRandomError


def take_torn(own, times, draw):
    """Take an epoch; so many calls of next() are interrupted, and made again."""
    found, batches = [], iter(own)
    while True:
        try:
            if times:
                signal.setitimer(signal.ITIMER_REAL, draw.choice((1e-4, 1e-3, 4e-3, 2e-2)))
            try:
                batch = next(batches)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (InterruptedAtRandomError, TypeError):  # numpy makes the one of the other
            times -= 1
            continue
        except StopIteration:
            return found, times
        found.append(digest(batch, own.step_info))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_at_any_moment_leaves_the_same_batches_to_come(workers):
    whole = take(loader(made.Plain(), num_workers=workers))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for seed in range(2):
            own = loader(made.Plain(), num_workers=workers)
            found, _ = take_torn(own, 12, random.Random(seed))
            assert found == whole
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_release_that_an_exception_leaves_at_any_line_comes_again():
    released = {StreamLoop.release.__code__, StreamLoop._clear.__code__}
    whole = take(loader(made.Plain(40)))
    for line in range(1, 70):
        lines = iter(range(line))

        def trace(frame, event, _, lines=lines):
            if frame.f_code not in released:
                return None
            if event == "line" and next(lines, None) is None:
                raise InterruptedAtRandomError  # which also ends the tracing
            return trace

        found, batches = [], iter(own := loader(made.Plain(40)))
        sys.settrace(trace)
        try:
            while True:
                try:
                    found.append(digest(next(batches), own.step_info))
                except InterruptedAtRandomError:
                    continue
                except StopIteration:
                    break
        finally:
            sys.settrace(None)
        assert found == whole, line
