"""Start a balancer again that has died: `counterpoise balancer --supervise`.

The supervisor is the process that was started; it forks the balancer before anything else runs
(sockets, threads), passes SIGINT and SIGTERM on, and forks again if the balancer is killed by a
signal that was not passed on. A balancer that ends by itself, well or with an error that it has
reported, is not started again, and its exit status is the supervisor's.
"""

import logging
import os
import signal
import time
from collections.abc import Callable

from ...workers.processes.forked_child import fork_with_default_signals
from ...workers.processes.supervisor import die_with, wake_on

logger = logging.getLogger("counterpoise")

# A balancer that dies this often in a row, each time within QUICK_S, would die again.
MAX_QUICK_DEATHS = 5
QUICK_S = 10.0


def supervise(serve: Callable[[], None]) -> int:
    """Run `serve` in a process, again and again while that is killed; return its exit status.

    RuntimeError if it is killed at once several times in a row.
    """
    wake, waker = wake_on((signal.SIGINT, signal.SIGTERM, signal.SIGCHLD))
    quick = 0
    while True:
        started = time.monotonic()
        status, was_stopped = _wait(_start(serve, (wake, waker)), wake)
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status)
        if was_stopped:
            return 128 + os.WTERMSIG(status)
        name = signal.Signals(os.WTERMSIG(status)).name
        quick = quick + 1 if time.monotonic() - started < QUICK_S else 1
        if quick >= MAX_QUICK_DEATHS:
            raise RuntimeError(
                f"the balancer was killed by {name}, {quick} times in a row: see what it logged"
            )
        logger.error("the balancer was killed by %s, and is started again", name)


def _start(serve: Callable[[], None], descriptors: tuple[int, int]) -> int:
    """Fork a process that serves; it ends with this one."""
    parent = os.getpid()
    pid = fork_with_default_signals()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with(parent)
        os.setpgid(0, 0)  # a terminal's Ctrl-C comes once, from the supervisor
        for each in descriptors:
            os.close(each)
        status = _status_of(serve)
    finally:
        os._exit(status)


def _status_of(serve: Callable[[], None]) -> int:
    """Serve, and return the exit status that the command line gives its errors."""
    try:
        serve()
    except (ValueError, OSError, RuntimeError) as error:
        logger.error("%s", error)
        return 2
    return 0


def _wait(pid: int, wake: int) -> tuple[int, bool]:
    """Wait for a child's end, passing signals on; return its wait status, and if any was passed."""
    was_stopped = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, was_stopped
        os.set_blocking(wake, True)
        for number in os.read(wake, 64):
            if number in (signal.SIGINT, signal.SIGTERM):
                was_stopped = True
                os.kill(pid, number)
