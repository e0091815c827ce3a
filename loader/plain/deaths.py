"""Names the signal that has killed a worker.

torch learns of it by SIGCHLD: in the main thread, and of children only. Workers from our fork
server are none, and a loader may be iterated in another thread.
"""

import signal
from typing import Any


def killed_worker(workers: list[Any]) -> str | None:
    """Return torch's text for the first of `workers` that a signal has killed, None without one."""
    for worker in workers:
        code = worker.exitcode
        if code is not None and code < 0:
            name = signal.strsignal(-code) or str(-code)
            return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}. "
    return None
