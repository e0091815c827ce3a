"""Holds a signal back while memory, descriptors and processes change hands.

Python runs a signal's handler between any two bytecodes of the main thread, and torch's handler of
SIGCHLD raises there when a worker has died: also between a system call and the assignment of what
it returned, where a descriptor that has arrived or a child's exit status would be lost, and within
a finalizer, where the exception is swallowed and the memory stays.

A function that must not be left there is marked `uninterrupted`. The handler looks whether such a
function is running, itself or below; if so, it is called again where the trainer is about to wait.
So the marked functions cost nothing, and a worker's death is still raised at once. Marked are the
finalizers, and what a trainer enters from outside. Only signals that are asked for (`hold`) are
held; Ctrl-C is not, since nobody may wait after it.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Handler = Callable[[int, FrameType | None], Any]

_uninterrupted: set[CodeType] = set()
# By signal: its own handler, for those that are held back where need be.
_handlers: dict[int, _Handler] = {}
_held: set[int] = set()


def uninterrupted(function: _Function) -> _Function:
    """Mark a function of Python's in which, and in what it calls, held signals are kept."""
    _uninterrupted.add(function.__code__)
    return function


def hold(number: int, module: str) -> None:
    """Hold a signal back in marked functions from now on, if its handler is one of `module`'s.

    Otherwise, and outside of the main thread, nothing is changed.
    """
    found = signal.getsignal(number)
    if _is_main_thread() and callable(found) and getattr(found, "__module__", None) == module:
        _handlers[number] = found
        signal.signal(number, _handle)


def raise_held() -> None:
    """Call the handlers of the signals that were held back; raises what they raise.

    Only in the main thread, where Python calls handlers: torch's that pins batches waits, too.
    """
    while _held and _is_main_thread():
        number = _held.pop()
        _handlers[number](number, None)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handle(number: int, frame: FrameType | None) -> None:
    if _is_uninterrupted(frame):
        _held.add(number)
    else:
        _handlers[number](number, frame)


def _is_uninterrupted(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _uninterrupted:
            return True
        frame = frame.f_back
    return False


os.register_at_fork(after_in_child=_held.clear)  # they were its parent's
