"""Pools of worker processes that always end with the process that started them.

`start_pool(job)` has the trainer's fork server fork a supervisor, which starts the workers;
`method="fork"` forks the supervisor from the trainer itself, as torch forks its workers.
Either way the trainer keeps the ends of a pipe and of a socket: the *lifeline*, which it never
writes to and whose closing ends the pool, and the *reports*, a packet each, whose end says that
every process is gone.

A forked copy of the trainer owns none of this: it drops its copies of the ends at once (they
would keep the pools alive beyond the trainer), and gets a fork server of its own when it needs one.
"""

import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import weakref
from types import TracebackType
from typing import Self

from .fork_client import ForkServer, close_fork_servers, own_pidfd, send_request
from .fork_server import NO_GUARD, is_importing_main
from .forked_child import fork_with_default_signals
from .pool_job import PoolJob, Report, WorkerSlot, parse_report
from .request import write_request
from .supervisor import run

__all__ = ["Pool", "PoolJob", "Report", "WorkerSlot", "begin_pool", "start_pool"]

START_S = 120.0
_CLOSE_S = 4.0
_KILL_S = 2.0
_METHODS = ("forkserver", "fork")
# A report is shorter.
_PACKET_BYTES = 4096
# For those of all restarts, should the trainer read none for long; the kernel may give less.
_UNREAD_BYTES = 1 << 20


class _Ends:
    """The trainer's ends of a pool's pipe and socket, and what is known of its processes."""

    def __init__(self, lifeline: int, reports: int) -> None:
        self.lifeline = lifeline
        self.reports = reports
        self.supervisor = 0
        self.fork_server: ForkServer | None = None  # None: the supervisor is a child of ours
        self.pids: set[int] = set()

    def release(self, name: str) -> None:
        """Close `lifeline` or `reports`, once."""
        descriptor = getattr(self, name)
        setattr(self, name, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def read(self, last: str = "") -> tuple[list[Report], bool]:
        """Return the reports that have arrived, and whether no more can come.

        last: the kind of report after which others stay, to wake a poll.
        """
        reports: list[Report] = []
        while self.reports >= 0 and not (reports and reports[-1].event == last):
            try:
                packet = os.read(self.reports, _PACKET_BYTES)
            except BlockingIOError:
                return reports, False
            if not packet:
                return reports, True
            reports.append(parse_report(packet))
            self._note(reports[-1])
        return reports, self.reports < 0

    def _note(self, report: Report) -> None:
        if report.event in ("loading", "ready"):
            self.supervisor = report.pid
        elif report.event == "started":
            self.pids.add(report.pid)
        elif report.event == "exited":
            self.pids.discard(report.pid)


_open: "weakref.WeakSet[_Ends]" = weakref.WeakSet()
_orphans: list[int] = []  # forked supervisors of pools that were dropped, not yet waited for


class Pool:
    """Running processes. Closing, dropping or losing the pool ends all of them."""

    def __init__(self, ends: _Ends) -> None:
        self._ends = ends
        self._finalizer = weakref.finalize(self, _drop, ends)
        self._finalizer.atexit = False  # _end_everything waits, too
        self._pending: list[Report] = []
        self._has_told_end = False
        self._is_ready = False

    @property
    def supervisor_pid(self) -> int:
        """The process id of the pool's supervisor."""
        return self._ends.supervisor

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers, as far as reports have been read."""
        return tuple(sorted(self._ends.pids))

    def fileno(self) -> int:
        """Return the descriptor to poll: when it is readable, `poll_reports` has news."""
        if self._ends.reports < 0:
            raise ValueError("the pool is closed: there is nothing to poll")
        return self._ends.reports

    def poll_reports(self) -> list[Report]:
        """Return the reports since the last call. Never waits; empty after `close`.

        The first call returns the reports until the pool was ready, even if a poll shows none.
        """
        reports, self._pending = self._pending + self._read_reports(), []
        return reports

    def _read_reports(self, last: str = "") -> list[Report]:
        reports, ended = self._ends.read(last)
        self._is_ready |= any(report.event == "ready" for report in reports)
        # A pool that ends by itself says why, in this call or in one before.
        if any(report.event == "failed" and report.worker is None for report in reports):
            self._has_told_end = True
        if ended and not self._has_told_end and self._ends.reports >= 0:
            self._has_told_end = True
            message = "the pool's supervisor was killed, and all its processes with it"
            reports.append(Report("failed", pid=self._ends.supervisor, message=message))
        return reports

    def close(self) -> None:
        """End all processes and wait until they are gone (a few seconds at most)."""
        self._finalizer.detach()
        _end(self._ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until the workers are forked; see `start_pool` for errors."""
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        while not self._is_ready:
            left_ms = 1000 * (deadline - time.monotonic())
            if left_ms <= 0 or not poller.poll(left_ms):
                raise TimeoutError(f"the worker processes were not ready after {timeout_s} s")
            # No more than these: what comes after must wake whoever polls then.
            reports = self._read_reports(last="ready")
            self._pending += reports
            for report in reports:
                if report.event == "failed" and report.worker is None:
                    raise RuntimeError(report.message)


def start_pool(job: PoolJob, method: str = "forkserver", timeout_s: float = START_S) -> Pool:
    """Start a job's processes; return when the workers are forked.

    Raises TypeError if the job cannot be pickled, RuntimeError with the processes' own message if
    they could not load the job, TimeoutError after `timeout_s`.
    """
    pool = begin_pool(job, method, timeout_s)
    try:
        pool.wait_ready(timeout_s)
    except BaseException:
        pool.close()
        raise
    return pool


def begin_pool(job: PoolJob, method: str = "forkserver", timeout_s: float = START_S) -> Pool:
    """Start a job's processes as `start_pool` does, and return at once: see `Pool.wait_ready`.

    The workers will have what this process has now.
    """
    if method not in _METHODS:
        raise ValueError(f"a pool is started by one of {_METHODS}, got {method!r}")
    if is_importing_main():
        raise RuntimeError(NO_GUARD)
    _reap_orphans()
    start = _start_by_fork_server if method == "forkserver" else _start_by_fork
    return Pool(start(job, timeout_s))


def _start_by_fork_server(job: PoolJob, timeout_s: float) -> _Ends:
    request, shared = write_request(job)
    trainer = own_pidfd()
    watching, lifeline = os.pipe()
    reading, reports = _report_ends()
    ends = _Ends(lifeline, reading)
    os.set_blocking(reading, False)
    try:
        passed = [request, reports, watching, *trainer, *shared]
        message = b"start %d" % len(shared)
        ends.fork_server = send_request(message, passed, _modules(job), timeout_s)
    except BaseException:
        _drop(ends)
        raise
    finally:
        for descriptor in (request, reports, watching, *trainer, *shared):
            os.close(descriptor)
    _open.add(ends)
    return ends


def _start_by_fork(job: PoolJob, timeout_s: float) -> _Ends:  # noqa: ARG001
    trainer = own_pidfd()
    watching, lifeline = os.pipe()
    reading, reports = _report_ends()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork_with_default_signals()
    if pid == 0:
        try:
            for descriptor in (lifeline, reading):
                os.close(descriptor)
            os.setsid()
            # A collection must not finalize the trainer's garbage, nor touch all its pages.
            gc.freeze()
            run(job, reports, [watching, *trainer], inherits=True)
        finally:
            os._exit(1)
    for descriptor in (watching, reports, *trainer):
        os.close(descriptor)
    os.set_blocking(reading, False)
    ends = _Ends(lifeline, reading)
    ends.supervisor = pid
    _open.add(ends)
    return ends


def _report_ends() -> tuple[int, int]:
    """Return the ends of the reports: the trainer's, and that of the processes."""
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
    return reading.detach(), writing.detach()


def _modules(job: PoolJob) -> list[str]:
    """Return the module of the job's function: a new fork server imports it at once."""
    return [job.work.__module__] if hasattr(job.work, "__module__") else []


def _drop(ends: _Ends) -> None:
    """End a pool without waiting for it."""
    forked_by_us = ends.fork_server is None and ends.supervisor
    if forked_by_us and ends.lifeline >= 0:
        _orphans.append(ends.supervisor)
    ends.release("lifeline")
    ends.release("reports")
    _open.discard(ends)


def _end(ends: _Ends) -> None:
    """End a pool and wait for it; a supervisor that does not end is killed."""
    ends.release("lifeline")
    if ends.reports >= 0:
        ended = _wait_for_end(ends, _CLOSE_S)
        if not ended:
            _kill_supervisor(ends)
            ended = _wait_for_end(ends, _KILL_S)
        if ends.fork_server is None:
            _orphans.append(ends.supervisor)
            _reap_orphans(ends.supervisor if ended else 0)
    ends.release("reports")
    _open.discard(ends)


def _wait_for_end(ends: _Ends, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    poller = select.poll()
    poller.register(ends.reports, select.POLLIN)
    while not ends.read()[1]:
        left_ms = 1000 * (deadline - time.monotonic())
        if left_ms <= 0 or not poller.poll(left_ms):
            return False
    return True


def _kill_supervisor(ends: _Ends) -> None:
    if ends.fork_server is not None:
        ends.fork_server.signal(ends.supervisor, signal.SIGKILL)
    else:
        os.kill(ends.supervisor, signal.SIGKILL)


def _reap_orphans(ending: int = 0) -> None:
    """Reap the forked supervisors that have ended; wait for `ending`, which is about to."""
    for pid in list(_orphans):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, 0 if pid == ending else os.WNOHANG)[0] == 0:
                continue
        _orphans.remove(pid)


def _end_everything() -> None:
    """End all pools at the interpreter's exit, and the fork server last."""
    for ends in list(_open):
        _end(ends)
    close_fork_servers()


def _forget_everything() -> None:
    """Close everything of the trainer's in a forked copy of it."""
    for ends in list(_open):
        ends.release("lifeline")
        ends.release("reports")
    _open.clear()
    _orphans.clear()


atexit.register(_end_everything)
os.register_at_fork(after_in_child=_forget_everything)
