"""A process that is a copy of the trainer when its workers were started, to start others later.

A worker that has died is to be replaced by one with the data set of the same `iter()`; and a
trainer in the middle of a step (threads, CUDA, locks) is not to be forked. So one more process is
started with the workers, which does nothing but fork one like them when it is asked to. It has no
thread. It ends when the trainer closes its socket, or has ended itself; its workers end with it.
"""

import contextlib
import os
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .ending import GRACE_S, end_processes

_NUMBER = struct.Struct("=q")
_END = -1
Target = Callable[..., None]
# To start a worker takes milliseconds; a template that takes this long is not there any more.
START_S = 60.0


class TemplateWorker:
    """A worker that a template has forked, as multiprocessing's Process shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.sentinel = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already
            self.sentinel = os.open(os.devnull, os.O_RDONLY)  # which is readable, too
        # Only the template learns how it has ended.
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._wait(0.0)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` seconds."""
        self._wait(timeout)

    def terminate(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def _wait(self, seconds: float | None) -> bool:
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        return bool(poller.poll(None if seconds is None else seconds * 1000))

    def __del__(self, _close: Any = os.close) -> None:
        _close(self.sentinel)


class WorkerTemplate:
    """Starts workers as they were to be started when it was made.

    context: multiprocessing's. target: the function of a worker, with `arguments[number]`. process:
    the one that starts them.
    """

    def __init__(self, context: Any, target: Target, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Start the process; raises what pickling raises, where it starts clean."""
        self._requests, theirs = socket.socketpair()
        self.process = context.Process(
            target=_serve, args=(os.getpid(), theirs, target, arguments), daemon=True
        )
        self.process.start()
        theirs.close()
        self._requests.settimeout(START_S)

    def start(self, number: int) -> TemplateWorker:
        """Return a new worker of a number; RuntimeError if the template has ended."""
        try:
            self._requests.sendall(_NUMBER.pack(number))
            reply = self._requests.recv(_NUMBER.size)
        except OSError as error:
            raise RuntimeError(f"a worker cannot be started again: {error}") from error
        if len(reply) < _NUMBER.size:
            raise RuntimeError("a worker cannot be started again: its template has ended")
        return TemplateWorker(_NUMBER.unpack(reply)[0])

    def close(self) -> None:
        """End the process and the workers that it has started, and wait until it has ended."""
        # Said, since the process has a copy of this end, too, where it was forked.
        with contextlib.suppress(OSError):
            self._requests.sendall(_NUMBER.pack(_END))
        self._requests.close()
        self.process.join(GRACE_S)
        end_processes([self.process])


def _serve(
    trainer: int, requests: socket.socket, target: Target, arguments: Sequence[tuple[Any, ...]]
) -> None:
    """Be the template: fork a worker for each number that is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer's, and its workers', as torch's
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # its workers are not waited for here
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    try:
        poller.register(os.pidfd_open(trainer), select.POLLIN)
    except ProcessLookupError:
        return  # it has ended meanwhile, and the copy of its socket that is here tells nothing
    except OSError:
        pass  # an old kernel: where processes start clean, the socket's end tells, too
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if requests.fileno() not in ready:
            return  # the trainer has ended
        asked = requests.recv(_NUMBER.size)
        if len(asked) < _NUMBER.size:
            return
        (number,) = _NUMBER.unpack(asked)
        if number == _END:
            return
        pid = os.fork()
        if pid == 0:
            _be_worker(requests, target, arguments[number])
        requests.sendall(_NUMBER.pack(pid))


def _be_worker(requests: socket.socket, target: Target, arguments: tuple[Any, ...]) -> None:
    """Be a worker of this process, which is the template's child; never return."""
    code = 1
    try:
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        target(*arguments)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)
