"""A process of its own for each system that is measured: none has the heap of another."""

import multiprocessing
from collections.abc import Callable
from typing import Any


class MeasuredProcess:
    """A new process that answers what it is asked: `serve(pipe, *arguments)` runs in it.

    `serve` sends an answer for everything it receives, its error as a string, and returns when the
    pipe is closed (EOFError).
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    def ask(self, what: Any) -> Any:
        """Return the process' answer. Raises ValueError with its error, RuntimeError if it died."""
        self._pipe.send(what)
        try:
            answer = self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("a measured process died; its own messages are above") from error
        if isinstance(answer, str):
            raise ValueError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()
