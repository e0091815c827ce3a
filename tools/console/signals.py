"""Ending by signal: the first SIGINT or SIGTERM is a wish that is granted soon."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether a signal has come; the second acts as it always does."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    wished = False

    def wish(_number: int, _frame: object) -> None:
        nonlocal wished
        wished = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, wish)
    try:
        yield lambda: wished
    finally:
        restore()
