"""Forks processes of the trainer, which give up what they have of it.

As long as any process holds a copy, a socket stays connected, a pipe does not end, a device stays
open: what a trainer closes would not be closed while its fork lives. So a supervisor gives up the
trainer's descriptors once it has forked the first workers, which have them as torch's workers have
them. Regular files stay there: a worker that is started in place of one that died may read a data
set's open files, and nobody waits for the end of a file.

A process that lives for the whole job has nothing to do with the trainer any more: it gives up all
that a new interpreter would not have. Memory cannot be given up: pages are kept as they were, also
when the trainer has changed or freed its own.
"""

import contextlib
import gc
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

# Standard input, output and error are shared with the trainer on purpose: workers print.
STANDARD = (0, 1, 2)
# Pauses between looks at a process that is about to end.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.0005, 0.05


def fork_with_default_signals() -> int:
    """Call `os.fork`; SIGTERM ends the child, SIGINT does not, and no signal is lost."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return pid


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
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    give_up_inherited(kept, files=False)


def give_up_inherited(kept: Collection[int], files: bool = True) -> None:
    """Close all descriptors but those kept and the standard ones; `files`: nor regular files.

    Their numbers stay taken, by a descriptor that can neither be read nor written: a data set in a
    worker that is started later may still hold one, and must not reach what was opened since.
    """
    nothing = os.open("/", os.O_PATH)
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor not in (nothing, *STANDARD, *kept) and (_is_shared(descriptor) or not files):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _is_shared(descriptor: int) -> bool:
    """Return whether it is open, and closing it means something to others."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False  # the one that listed the folder
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
