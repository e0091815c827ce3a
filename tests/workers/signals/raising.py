"""A signal whose handler raises, as torch's does when a worker has died."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from counterpoise.workers.signals import holding
from tests.loader.alarms import Interrupted


def interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def raising_handler(number: int) -> Iterator[str]:
    """Give a signal such a handler, whose module is returned, and afterwards its former one."""
    before = signal.signal(number, interrupt)
    try:
        yield interrupt.__module__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # where the signal is a timer's
        signal.signal(number, before)
        holding._handlers.pop(number, None)
        holding._held.discard(number)
