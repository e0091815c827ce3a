"""A process of its own for each system that is measured, and what all below it use.

None of these systems has the heap of another.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any


class MeasuredProcess:
    """A new process that answers what it is asked: `serve(pipe, name, *arguments)` runs in it.

    `serve` sends an answer for everything it receives, and ends with the EOFError of a pipe that is
    closed. Any other error of it is an answer, too, behind the name of the system.
    """

    def __init__(self, serve: Callable[..., None], name: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, serve, name, *arguments))
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


def _serve(pipe: "Pipe[Any, Any]", serve: Callable[..., None], name: str, *arguments: Any) -> None:
    try:
        serve(pipe, name, *arguments)
    except EOFError:
        pass
    except Exception as error:
        pipe.send(f"{name}: {type(error).__name__}: {error}")


def tree(root: int) -> Iterator[int]:
    """Yield a process and all below it; those that end meanwhile may be left out."""
    yield root
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{root}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def cpu_s_below(root: int) -> dict[int, float]:
    """Return the CPU seconds so far of each process below one, whatever loader started it."""
    found = {}
    for pid in tree(root):
        # one that has ended since it was listed: clock_gettime says EINVAL
        with contextlib.suppress(OSError):
            if pid != root:
                # the kernel's number for the CPU clock of a process
                found[pid] = time.clock_gettime((~pid << 3) | 2)
    return found
