"""Turns the first SIGINT or SIGTERM into a request to stop; the second acts as usual.

SIGUSR1 is taken for a SIGTERM: srun passes on the one, and kills at the other.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Give a function that returns True once a signal has arrived."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    requested = False

    def request(_number: int, _frame: object) -> None:
        nonlocal requested
        requested = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, request)
    try:
        yield lambda: requested
    finally:
        restore()
