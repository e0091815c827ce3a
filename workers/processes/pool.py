"""Pools of worker processes that always end with the process that started them.

They start as torch's workers would now, and one that has died is replaced by a process of a
template (worker_template.py), which has the payload as it was at the start. Each watches its parent
(ending.py), so nothing is left, however the trainer ends. Workers say why they end in packets
of a socket, of which the trainer has the other end.
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.context import BaseContext
from typing import Any

from ..sources.failures import describe_error
from .ending import end_processes, end_with_parent
from .start_method import worker_context
from .worker_template import WorkerTemplate

_PACKET_BYTES = 8192


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """One worker's place in its pool: its number, of so many."""

    index: int
    workers: int


Work = Callable[[Any, WorkerSlot], None]


class PoolEndedError(Exception):
    """Raised by `work`: the whole pool ends, with this text, and no worker is started again."""


class Pool:
    """Processes that run `work(payload, slot)`. Closing or dropping the pool ends all of them.

    In a forked copy of the trainer it does nothing.
    """

    def __init__(
        self,
        work: Work,
        payload: object,
        workers: int,
        context: BaseContext | None = None,
        restarts: int = 0,
    ) -> None:
        """Start the workers; `restarts` bounds how often, over all, one that died is started again.

        context: a DataLoader's multiprocessing_context. Raises TypeError for what cannot be
        pickled, where workers start clean.
        """
        maker: Any = worker_context(context) or multiprocessing.get_context()
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._reports, theirs):
            end.setblocking(False)
        self._poller = select.epoll()
        self._poller.register(self._reports, select.EPOLLIN)
        self._processes: list[Any] = []
        self._templates: list[WorkerTemplate] = []
        self._restarts = restarts
        # Why workers have ended, by their number, and why all have.
        self._reasons: dict[int, str] = {}
        self._failure = ""
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self._processes, self._templates, self._reports, self._poller
        )
        self._finalizer.atexit = False  # _end_all
        _all.add(self)
        arguments = [(work, payload, WorkerSlot(n, workers), theirs) for n in range(workers)]
        try:
            for args in arguments:
                started = maker.Process(target=_run, args=args, daemon=True)
                started.start()
                self._processes.append(started)
                self._poller.register(started.sentinel, select.EPOLLIN)
            if restarts:
                self._templates.append(WorkerTemplate(maker, _run, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise TypeError(
                f"cannot send this to the worker processes: {describe_error(error)}; define it at "
                "the top level of a module, or pass multiprocessing_context='fork'"
            ) from error
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.pid for worker in self._processes)

    def fileno(self) -> int:
        """Return the descriptor to poll: when it is readable, `failure` may have a reason."""
        return self._poller.fileno()

    def failure(self) -> str:
        """Return why the pool cannot go on, empty while it can; replaces workers that have died."""
        ended = [number for number, worker in enumerate(self._processes) if not worker.is_alive()]
        self._read_reports()  # what they have said before they ended
        for number in ended:
            if not self._failure:
                self._replace(number)
        return self._failure

    def _replace(self, number: int) -> None:
        worker = self._processes[number]
        if not self._restarts or worker.exitcode == 0:
            # Of one that a template has started the exit status is not known.
            code, why = worker.exitcode or 0, self._reasons.get(number, "")
            how = f"signal {-code}" if code < 0 else f"status {code}"
            self._failure = f"worker {number} ended with {how} and is not started again{why}"
            return
        self._restarts -= 1
        self._poller.unregister(worker.sentinel)
        try:
            self._processes[number] = self._templates[0].start(number)
        except RuntimeError as error:
            self._failure = str(error)
        else:
            self._poller.register(self._processes[number].sentinel, select.EPOLLIN)

    def _read_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := self._reports.recv(_PACKET_BYTES).decode(errors="replace"):
                kind, number, text = packet.split(" ", 2)
                if kind == "end":
                    self._failure = self._failure or f"worker {number}: {text}"
                self._reasons[int(number)] = f": worker {number} raised {text}"

    def close(self) -> None:
        """End all processes and wait until they are gone (a second or so at most)."""
        self._finalizer()
        _all.discard(self)


def _end(
    owner: int,
    processes: list[Any],
    templates: list[WorkerTemplate],
    reports: socket.socket,
    poller: "select.epoll",
) -> None:
    """End a pool's processes, and wait for them; nothing in a forked copy of the trainer."""
    if os.getpid() != owner:
        return
    end_processes(processes)
    for template in templates:
        template.close()
    poller.close()
    reports.close()


_all: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def _end_all() -> None:
    for pool in list(_all):
        pool.close()


def _leave_all() -> None:
    """Make a forked child end nothing: the workers are its parent's."""
    for pool in list(_all):
        own_processes = {*pool._processes, *(template.process for template in pool._templates)}
        # At a process' exit multiprocessing ends those that are here.
        process._children.difference_update(own_processes)  # type: ignore[attr-defined]
    _all.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_leave_all)


def _run(work: Work, payload: object, slot: WorkerSlot, reports: socket.socket) -> None:
    """Be a worker."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is the trainer's, which ends us
    end_with_parent()
    try:
        work(payload, slot)
    except Exception as error:
        ends = isinstance(error, PoolEndedError)
        text = " ".join((str(error) if ends else describe_error(error)).split())
        packet = f"{'end' if ends else 'error'} {slot.index} {text}".encode(errors="replace")
        with contextlib.suppress(OSError):  # it is full, or the trainer has ended
            reports.send(packet[:_PACKET_BYTES])
        if not ends:
            raise
        os._exit(1)
