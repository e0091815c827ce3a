"""Ends worker processes for certain: with their parent, and when the parent asks.

One that is stopped, or hangs in a read, takes no SIGTERM. torch's workers ask every 5 s, while they
wait for work, whether their parent is still there: one that is idle outlives a killed trainer by
5 s, one that loads a sample by the time that this takes. A signal from the kernel
(PR_SET_PDEATHSIG) would come too early: at the end of the thread that started the worker.
"""

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection
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


def begin_worker(init_fn: Callable[[int], None] | None, number: int) -> None:
    """Be the worker_init_fn of a loader whose own is `init_fn`."""
    end_with_parent()
    if init_fn is not None:
        init_fn(number)


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends, or the process that started it.

    If one of them has ended already, this process ends now. Nothing where the kernel cannot tell.
    """
    # A parent that was killed meanwhile is none any more, and neither torch nor this thread would
    # notice the end of the process that has taken its place.
    started_by = multiprocessing.parent_process()
    numbers = {os.getppid()} | ({started_by.pid} if started_by and started_by.pid else set())
    try:
        descriptors = [os.pidfd_open(number) for number in numbers]
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # an old kernel
        return
    threading.Thread(target=_wait_and_exit, args=(descriptors,), daemon=True).start()


def _wait_and_exit(descriptors: list[int]) -> None:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    poller.poll()
    os._exit(1)
