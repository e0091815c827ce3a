"""Ends a worker of torch's with its parent, whatever the worker is doing.

torch's workers ask every 5 s, while they wait for work, whether their parent is still there: one
that is idle outlives a killed trainer by 5 s, one that loads a sample by the time that this takes.
A signal from the kernel (PR_SET_PDEATHSIG) would come too early: at the end of the thread that
started the worker.
"""

import multiprocessing
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
