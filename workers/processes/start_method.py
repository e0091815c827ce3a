"""Finds how torch's DataLoader would start workers, and what is quiet while it forks them."""

import mmap
import multiprocessing
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from multiprocessing import forkserver, process
from multiprocessing.context import BaseContext, DefaultContext
from typing import Any

NO_GUARD = (
    "a loader with workers was started while the workers' process was importing this script; put "
    "the script's work below `if __name__ == '__main__':`, or pass multiprocessing_context='fork'"
)
_PRELOADED = f"{__package__}.fork_server"


def start_method(context: BaseContext | None = None) -> str:
    """Return "fork", "spawn" or "forkserver", as torch would start workers.

    `context` is a DataLoader's multiprocessing_context. Without one it is the interpreter's: what
    set_start_method chose, else its default ("fork" up to Python 3.13, "forkserver" after). Asking
    does not fix the interpreter's choice.

    >>> start_method(multiprocessing.get_context("spawn"))
    'spawn'
    """
    chosen: Any = multiprocessing if context is None else context
    if isinstance(chosen, DefaultContext) or chosen is multiprocessing:
        # The first of all methods is the default, says their documentation.
        name: str = chosen.get_start_method(allow_none=True) or chosen.get_all_start_methods()[0]
    else:
        name = chosen.get_start_method()
    return name


def worker_context(context: BaseContext | None) -> BaseContext | None:
    """Return a loader's context as it is; a fork server will have imported torch (fork_server.py).

    That is not so where one runs already. RuntimeError where workers start clean, and this is one
    that is importing a script without a main guard.
    """
    method = start_method(context)
    if method != "fork" and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(NO_GUARD)
    if method == "forkserver":
        server: Any = forkserver._forkserver
        modules = [module for module in server._preload_modules if module != _PRELOADED]
        forkserver.set_forkserver_preload([*modules, _PRELOADED])
    return context


# ZeroMQ's threads, where there are any: their module registers a context without them, so a loop
# that uses no ZeroMQ does not import it.
_contexts: list[Callable[[], AbstractContextManager[None]]] = []


def register_quiet(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Have a context entered while a loader forks."""
    _contexts.append(context)


def quiet_forks() -> ExitStack:
    """Return a context in which workers are forked."""
    stack = ExitStack()
    for open_context in _contexts:
        stack.enter_context(open_context())
    return stack


def shared_numbers(context: Any, count: int) -> Any:
    """Return numbers that workers of a context and the trainer see."""
    if start_method(context) == "fork":  # nothing is left of it when it is not referred to
        return memoryview(mmap.mmap(-1, 8 * count)).cast("q")
    return (context or multiprocessing).RawArray("q", count)
