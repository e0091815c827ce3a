"""Start a balancer again that has died: `counterpoise balancer --supervise`.

The supervisor is the process that was started; it forks the balancer before anything else runs
(sockets, threads), passes SIGINT and SIGTERM on, and forks again if the balancer is killed by a
signal that was not passed on. A balancer that ends by itself, well or with an error that it has
reported, is not started again, and its exit status is the supervisor's.
"""

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from ...workers.processes.parent_watch import end_with_parent

logger = logging.getLogger("counterpoise")

# A balancer that dies this often in a row, each time within QUICK_S, would die again.
MAX_QUICK_DEATHS = 5
QUICK_S = 10.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def supervise(serve: Callable[[], None]) -> int:
    """Run `serve` in a process, again and again while that is killed; return its exit status.

    RuntimeError if it is killed at once several times in a row.
    """
    quick = 0
    while True:
        started = time.monotonic()
        status, was_stopped = _run(serve)
        if status >= 0:
            return status
        if was_stopped:
            return 128 - status
        name = signal.Signals(-status).name
        quick = quick + 1 if time.monotonic() - started < QUICK_S else 1
        if quick >= MAX_QUICK_DEATHS:
            raise RuntimeError(
                f"the balancer was killed by {name}, {quick} times in a row: see what it logged"
            )
        logger.error("the balancer was killed by %s, and is started again", name)


def _run(serve: Callable[[], None]) -> tuple[int, bool]:
    """Serve in a forked process; return its exit status, below 0 a signal, and if we passed one on.

    Signals wait until the process is there, and in it until it has its own handlers.
    """
    was_stopped = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal was_stopped
        was_stopped = True
        if child.pid is not None and child.is_alive():
            os.kill(child.pid, number)

    child = multiprocessing.get_context("fork").Process(target=_be_balancer, args=(serve,))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child.start()
    for each in _PASSED_ON:
        signal.signal(each, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.join()
    return child.exitcode or 0, was_stopped


def _be_balancer(serve: Callable[[], None]) -> None:
    """Serve, and end with the exit status that the command line gives its errors."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    os.setpgid(0, 0)  # a terminal's Ctrl-C comes once, from the supervisor
    end_with_parent()
    try:
        serve()
    except (ValueError, OSError, RuntimeError) as error:
        logger.error("%s", error)
        sys.exit(2)
