"""Lets the trainer wait until its workers have begun, and raise what their beginning raised.

torch hands over what worker_init_fn raises in place of the worker's first batch. Data sets with a
state are restored at that moment too, and torchdata's loader waits for them in `iter()`.
"""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any


class Beginnings:
    """The beginnings of the workers of one iterator.

    context: the multiprocessing context of the workers, None for the interpreter's; wrapper:
    torch's class for an exception that goes to another process.
    """

    def __init__(self, context: Any, wrapper: type) -> None:
        chosen = multiprocessing if context is None else context
        self._reader, self._writer = chosen.Pipe(duplex=False)
        self._lock = chosen.Lock()
        self._wrapper = wrapper

    def worker_part(self) -> "Reporting":
        """Return what the workers need of this, to be sent to them."""
        return Reporting(self._writer, self._lock, self._wrapper)

    def wait(self, workers: list[Any], timeout_s: float) -> None:
        """Wait until all of the started `workers` have begun; raise what one of them raised.

        A worker that dies, and one that says nothing for `timeout_s` (0: forever), end the wait
        without an error: torch's iterator finds them when it is asked for a batch.
        """
        self._writer.close()
        ends = [worker.sentinel for worker in workers]
        with self._reader:
            for _ in workers:
                if self._reader not in wait([self._reader, *ends], timeout_s or None):
                    return
                try:
                    failure = self._reader.recv()
                except EOFError:  # all have died
                    return
                if failure is not None:
                    failure.reraise()


@dataclass(frozen=True, slots=True)
class Reporting:
    """The workers' part of Beginnings."""

    _writer: Connection
    _lock: Any
    _wrapper: type

    def begin(self, init_fn: Callable[[int], None], number: int) -> None:
        """Run worker_init_fn for worker `number` and report how it ended; raises what it raises."""
        try:
            init_fn(number)
        except Exception:
            self._send(self._wrapper(where=f"in DataLoader worker process {number}"))
            raise
        self._send(None)

    def _send(self, failure: Any) -> None:
        with self._lock, self._writer:
            try:
                self._writer.send(failure)
            except Exception:  # it cannot be pickled: the first batch will say it
                self._writer.send(None)
