"""Runs a function in a forked child, which takes nothing of what it breaks along."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

CHILD_S = 60  # a child that hangs would keep its parent waiting


def in_child(function: Callable[[], Any]) -> Callable[[], Any]:
    """Fork a child that calls `function`; return what waits for its result, or raises its error.

    Result and error must be picklable.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            told = _call(function)
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(told, pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)

    def wait() -> Any:
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        if not told:
            raise RuntimeError("the child ended without a word")
        result, error = pickle.loads(told)
        if error is not None:
            raise error
        return result

    return wait


def _call(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error
