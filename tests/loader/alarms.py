"""Signals whose handler raises, at random moments inside a loader's next()."""

import random
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """What the handler raises, as KeyboardInterrupt is."""


class Alarms:
    """Raises Interrupted at some moments inside next(), `raised` times so far."""

    def __init__(self, seed: int, longest_s: float) -> None:
        """A moment is at most `longest_s` after the call."""
        self.raised = 0
        self._chance = random.Random(seed)
        self._longest_s = longest_s

    def __enter__(self) -> "Alarms":
        self._former = signal.signal(signal.SIGALRM, self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()
        signal.signal(signal.SIGALRM, self._former)

    def take(self, source: Iterator[Any]) -> list[Any]:
        """Return all that an iterator gives, half of the calls being interrupted at first."""
        found = []
        while True:
            self._arm()
            try:
                found.append(next(source))
            except StopIteration:
                return found
            except Interrupted:
                continue
            finally:
                self._disarm()

    def _arm(self) -> None:
        if self._chance.random() < 0.5:
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, self._longest_s))

    def _disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, _: int, frame: FrameType | None) -> None:
        # Elsewhere it would be this class that loses what next() has returned.
        if _is_inside_next(frame) and not is_in_fork_hook(frame):
            self.raised += 1
            raise Interrupted


def is_in_fork_hook(frame: FrameType | None) -> bool:
    """Return whether a frame is of what runs before and after a fork (os.register_at_fork).

    The interpreter ignores an exception there, and logging's lock, say, is held from then on.
    """
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code.co_filename.endswith("popen_fork.py"):
            return True
        frame = frame.f_back
    return False


def _is_inside_next(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__next__" and "/loader/" in code.co_filename:
            return True
        frame = frame.f_back
    return False
