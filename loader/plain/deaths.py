"""Raises a worker's death where nothing is lost by it, and with the name of its signal.

torch learns of signals by SIGCHLD: in the main thread, and of children only. Workers from our fork
server are none, and a loader may be iterated in another thread.
"""

import signal
from multiprocessing.popen_fork import Popen
from typing import Any

from ...workers.signals.holding import hold, uninterrupted
from .torch_names import DEATHS_MODULE

# A child's exit status that is lost here never comes again: it would count as running for ever.
uninterrupted(Popen.poll)


def hold_deaths() -> None:
    """Hold torch's report of a worker's death back in functions marked as uninterrupted."""
    hold(signal.SIGCHLD, DEATHS_MODULE)


def killed_worker(workers: list[Any]) -> str | None:
    """Return torch's text for the first of `workers` that a signal has killed, None without one."""
    for worker in workers:
        code = worker.exitcode
        if code is not None and code < 0:
            name = signal.strsignal(-code) or str(-code)
            return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}. "
    return None
