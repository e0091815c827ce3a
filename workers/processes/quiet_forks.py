"""What is to be quiet while a loader forks its workers: ZeroMQ's threads, where there are any.

Whoever has threads registers a context in which there are none; loaders enter all of them while
they fork. So a loop that uses no ZeroMQ does not import it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

_contexts: list[Callable[[], AbstractContextManager[None]]] = []


def register_quiet(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Have a context entered while a loader forks."""
    _contexts.append(context)


def quiet_forks() -> ExitStack:
    """Return a context in which workers are forked."""
    stack = ExitStack()
    for each in _contexts:
        stack.enter_context(each())
    return stack
