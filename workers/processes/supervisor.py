"""The process above a pool's workers: starts them, watches them, and outlives all of them.

The supervisor holds the read end of the *lifeline*, a pipe whose write end only the trainer has.
However the trainer ends, the kernel closes that end, and the supervisor wakes up. It ends its
children (SIGTERM, a second later SIGKILL), and goes. If the supervisor itself is killed, the kernel
kills its children (PR_SET_PDEATHSIG). So nothing here depends on anybody's clean exit, and nothing
polls by the clock: one poll waits for the lifeline, the trainer's pidfd and the signals.

It is forked from the fork server, or from the trainer (`inherits`): then it gives up the trainer's
descriptors as soon as the workers have been forked. A worker that is started again later comes from
the supervisor too, and so has the data as they were when the pool was started.

Children of workers are in their worker's process group, and end with it.
"""

import contextlib
import ctypes
import multiprocessing.process
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .forked_child import fork_with_default_signals, give_up_inherited
from .pool_job import PoolEndedError, PoolJob, Report, WorkerSlot, describe_error, format_report

GRACE_S = 1.0
# The exit status of a worker that ends the pool.
_ENDS_POOL = 86
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends; end it now if that is too late."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def outlive(parent: int) -> None:
    """Revoke `die_with(parent)`; end the process if the parent is already gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def wake_on(signals: Sequence[int]) -> tuple[int, int]:
    """Return the ends of a pipe, the first of which can be read when one of the signals arrives."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda _number, _frame: None)
    return reading, writing


def send_report(descriptor: int, report: Report) -> None:
    """Write a report if there is a reader with room for it; never block."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(descriptor, format_report(report))


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    worker: int
    incarnation: int


class _Supervisor:
    """One pool's processes. `run` calls start, watch and end, in this order."""

    def __init__(self, job: PoolJob, report: int, watched: Sequence[int], inherits: bool) -> None:
        self._job = job
        self._report = report
        self._watched = watched  # the end of any of these is the end of the pool
        self._inherits = inherits
        self._restarts = job.restart
        self._children: dict[int, _Child] = {}
        self._ended = False
        self._wake, self._waker = wake_on((signal.SIGTERM, signal.SIGCHLD))

    def start(self) -> None:
        """Start the workers."""
        workers = range(self._job.workers)
        # Told only then: the trainer would wake up beside the first worker, for nothing yet.
        started = [self._start_worker(index, 0) for index in workers]
        for report in started:
            send_report(self._report, report)
        if self._inherits:
            give_up_inherited((*self._watched, self._wake, self._waker, self._report))
        send_report(self._report, Report("ready", pid=os.getpid()))

    def watch(self) -> None:
        """Return when the pool must end."""
        while not self._ended:
            readable = _wait([*self._watched, self._wake], None)
            if readable.intersection(self._watched):
                return
            if self._wake in readable and signal.SIGTERM in os.read(self._wake, 4096):
                return
            for child in self._reap():
                self._exited(child)

    def end(self) -> None:
        """End every child."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while self._children and (left := deadline - time.monotonic()) > 0:
            self._reap()
            if self._children and _wait([self._wake], left):
                os.read(self._wake, 4096)
        self._signal(signal.SIGKILL)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _start_worker(self, index: int, incarnation: int) -> Report:
        """Start a worker; return the report of it, which is to be sent."""
        slot = WorkerSlot(index, self._job.workers, incarnation)
        return self._fork(index, incarnation, lambda: self._job.work(self._job.payload, slot))

    def _fork(self, worker: int, incarnation: int, body: Callable[[], None]) -> Report:
        parent = os.getpid()
        pid = fork_with_default_signals()
        if pid == 0:
            ours = [*self._watched, self._wake, self._waker]
            _be_child(parent, worker, body, self._report, ours)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._children[pid] = _Child(pid, worker, incarnation)
        return Report("started", worker=worker, pid=pid, incarnation=incarnation)

    def _reap(self) -> list[tuple[_Child, int]]:
        """Return the children that ended, with their wait status; kill the processes they left."""
        ended = []
        for child in list(self._children.values()):
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, child.pid, look) is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            ended.append((child, os.waitpid(child.pid, 0)[1]))
            del self._children[child.pid]
        return ended

    def _exited(self, ended: tuple[_Child, int]) -> None:
        child, status = ended
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self._ended = self._ended or code == _ENDS_POOL
        again = code != 0 and self._restarts > 0 and not self._ended
        send_report(
            self._report,
            Report("exited", child.worker, child.pid, child.incarnation, code, killer, again),
        )
        if again:
            self._restarts -= 1
            started = self._start_worker(child.worker, child.incarnation + 1)
            send_report(self._report, started)

    def _signal(self, number: int) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)


def run(job: PoolJob, report: int, watched: Sequence[int], inherits: bool = False) -> NoReturn:
    """Be the supervisor of `job` until a descriptor in `watched` is readable; ends the process.

    `report` is for packets of `format_report`. Call it in a forked process
    with one thread, that leads its own session; `inherits` says that it was forked from the
    trainer, and has the trainer's descriptors.
    """
    os.set_blocking(report, False)
    _name_process("cp-supervisor")
    try:
        supervisor = _Supervisor(job, report, watched, inherits)
        try:
            supervisor.start()
            supervisor.watch()
        finally:
            supervisor.end()
    except BaseException as error:
        send_report(report, Report("failed", pid=os.getpid(), message=describe_error(error)))
        os._exit(1)
    os._exit(0)


def _be_child(
    parent: int, worker: int, body: Callable[[], None], report: int, unused: Sequence[int]
) -> NoReturn:
    """Run the body in a forked child, and end it."""
    code = 1
    try:
        die_with(parent)
        os.setpgid(0, 0)
        for descriptor in unused:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        name = f"cp-worker-{worker}"
        _name_process(name)
        # The body's errors are printed, and become the exit code, as in all of its processes.
        child: Any = _Process(target=_reporting, args=(body, worker, report), name=name)
        child._parent_pid = parent
        code = child._bootstrap()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


class _Process(multiprocessing.process.BaseProcess):
    """Makes a forked process one of multiprocessing's, as torch's workers are.

    Queues, locks and values of the trainer's are then made fit for use in the child, and finalizers
    of the trainer's do not run there.
    """

    _start_method = None  # the trainer's


def _reporting(body: Callable[[], None], worker: int, report: int) -> None:
    try:
        body()
    except PoolEndedError as error:
        message = f"worker {worker}: {error}"
        send_report(report, Report("failed", pid=os.getpid(), message=message))
        sys.exit(_ENDS_POOL)
    except Exception as error:
        message = f"worker {worker} raised {describe_error(error)}"
        send_report(report, Report("failed", worker=worker, pid=os.getpid(), message=message))
        raise


def _wait(descriptors: Sequence[int], timeout_s: float | None) -> set[int]:
    """Return the descriptors that can be read, or whose other end is closed."""
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
    return {fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)}


def _name_process(name: str) -> None:
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
