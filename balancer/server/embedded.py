"""The balancer as a process beside a trainer: a new interpreter.

It imports neither torch nor the trainer's main module: so it is ready sooner, and has nothing of
the trainer's. Its standard input is the lifeline: nothing comes until the trainer ends or closes
it, which ends this process at once, whatever it is doing.
"""

import contextlib
import ctypes
import functools
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from ..job.job_events import logger
from ..job.jobs import PlayedJobs
from .loop import new_credentials, serve

ENDPOINT = "balancer"
# The report of a balancer that serves; any other says why there is none.
READY = b"ready"
_PR_SET_NAME = 15


def make_endpoint(directory: str) -> str:
    """Return the address of the balancer whose socket is in a directory."""
    return f"ipc://{directory}/{ENDPOINT}"


def find_directory(endpoint: str) -> str:
    """Return the directory of such an address.

    >>> find_directory(make_endpoint("/tmp/sockets"))
    '/tmp/sockets'
    """
    return endpoint.removeprefix("ipc://").rpartition("/")[0]


def main(directory: str, listening: int, report: int) -> None:
    """Serve jobs at `listening`, a socket bound in `directory`.

    Ends the process with the trainer. Writes READY to `report`, or why there cannot be a balancer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched = [sys.stdin.fileno()]
    with contextlib.suppress(OSError):  # a kernel without: the lifeline is enough
        # A copy of the trainer may hold the lifeline open; this is the trainer itself.
        watched.append(os.pidfd_open(os.getppid()))
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"cp-balancer", 0, 0, 0)
    threading.Thread(target=_end_with_trainer, args=(watched, directory), daemon=True).start()
    try:
        credentials = functools.partial(new_credentials, has_keys=False)
        logger.disabled = True  # what goes wrong trainers say
        gc.freeze()  # what has been imported stays: no collection needs to look at it
        jobs = PlayedJobs(int(time.time()), credentials)
        serve(jobs, make_endpoint(directory), lambda _: _write(report, READY), descriptor=listening)
    except BaseException as error:
        _write(report, f"{type(error).__name__}: {error}".encode(errors="replace"))
        raise


def open_listener(directory: str) -> socket.socket:
    """Return a socket that listens before the balancer does, so that no peer has to try again."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(make_endpoint(directory).removeprefix("ipc://"))
    listening.listen()
    return listening


def _end_with_trainer(watched: Sequence[int], directory: str) -> None:
    """Wait for the trainer's end, remove the directory and end the process."""
    poller = select.poll()
    for descriptor in watched:
        poller.register(descriptor, select.POLLIN)
    poller.poll()
    import shutil  # here: it would delay each start

    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


def _write(report: int, text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(report, text)
