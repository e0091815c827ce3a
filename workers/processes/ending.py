"""Ends worker processes for certain: one that is stopped, or hangs in a read, takes no SIGTERM."""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from multiprocessing import process
from typing import Any

# Workers that do not end when they are asked to are killed after this time.
GRACE_S = 1.0


def end_processes(processes: Collection[Any], grace_s: float = GRACE_S) -> None:
    """End processes and wait for them; those that have not ended after `grace_s` are killed."""
    for worker in processes:
        if worker.is_alive():
            worker.terminate()
    deadline = time.monotonic() + grace_s
    for worker in processes:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.join(GRACE_S)
    # A worker that a lost disk holds even now is not waited for when this process ends, either.
    process._children.difference_update(processes)  # type: ignore[attr-defined]


class Ending:
    """A worker that is waited for up to a time which all have in common, in place of 5 s each."""

    def __init__(self, worker: Any, until: float) -> None:
        self._worker, self._until = worker, until

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """Wait until it has ended, or the time has come."""
        self._worker.join(max(0.0, self._until - time.monotonic()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)
