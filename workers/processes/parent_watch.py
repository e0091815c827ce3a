"""Ends a worker of torch's with its parent, whatever the worker is doing.

torch's workers ask every 5 s, while they wait for work, whether their parent is still there: one
that is idle outlives a killed trainer by 5 s, one that loads a sample by the time that this takes.
A signal from the kernel (PR_SET_PDEATHSIG) would come too early: at the end of the thread that
started the worker.
"""

import os
import select
import threading
from collections.abc import Callable


def begin_worker(init_fn: Callable[[int], None] | None, number: int) -> None:
    """Be the worker_init_fn of a loader whose own is `init_fn`."""
    end_with_parent()
    if init_fn is not None:
        init_fn(number)


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends; nothing where that cannot be."""
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(parent)
    except OSError:  # an old kernel, or no parent any more: torch's workers notice that
        return
    threading.Thread(target=_wait_and_exit, args=(descriptor,), daemon=True).start()


def _wait_and_exit(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll()
    os._exit(1)
