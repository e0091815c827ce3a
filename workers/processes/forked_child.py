"""A process that is forked from the trainer, and then has nothing to do with it any more.

A new interpreter takes a tenth of a second or more before it has imported what it needs; a fork has
all of that. What else it has of the trainer it gives up here, as far as a new interpreter would not
have it: descriptors, signal handlers, log handlers, streams that were replaced, tracing, filters of
warnings, how numpy treats errors. Memory cannot be given up: pages are kept as they were, also when
the trainer has changed or freed its own. And a lock that another thread holds at that moment stays
locked. So only a trainer is forked that `can_be_forked`.
"""

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import torch

from .inherited import give_up_inherited
from .supervisor import fork_with_default_signals

# Memory that a fork may keep beside the trainer. To copy the page tables of as much takes 10 ms.
MOST_BYTES = 512 << 20
# Pauses between looks at a process that is about to end.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.0005, 0.05


def can_be_forked() -> bool:
    """Return whether this process may be forked for a process that lives as long as the job.

    It has one thread of Python's, no CUDA, and its own memory is small.
    """
    uses_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if uses_cuda or threading.active_count() > 1:
        return False
    return _private_bytes() <= MOST_BYTES


def _private_bytes() -> float:
    """Return the size of the memory that is in no file; infinity where the kernel does not say."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except (OSError, ValueError):
        return float("inf")
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


class ForkedProcess:
    """The trainer's handle of such a process; named as those of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # As soon as it is known; negative: the signal that has ended it.
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its status; subprocess.TimeoutExpired."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        pause_s = _LEAST_PAUSE_S
        while (code := self._poll()) is None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
        return code

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self._poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else in the trainer has waited for it
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def fork_child(body: Callable[[], object], kept: Collection[int]) -> ForkedProcess:
    """Fork a process that runs `body` and ends; it leads a session, and SIGINT does not end it.

    Open in it are standard output and error, and the descriptors in `kept`. What `body` raises is
    printed.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    pid = fork_with_default_signals()
    if pid:
        return ForkedProcess(pid)
    code = 1
    try:
        os.setsid()
        _leave_trainer(kept)
        body()
        code = 0
    except BaseException:
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        os._exit(code)


def _leave_trainer(kept: Collection[int]) -> None:
    """Give up what a new interpreter would not have."""
    # A collection must not finalize the trainer's garbage, nor touch all its pages.
    gc.freeze()
    gc.enable()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)
    threading.setprofile(None)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    logging.disable()
    warnings.simplefilter("ignore")
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    give_up_inherited(kept, files=False)
