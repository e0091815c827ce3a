"""A multiprocessing context whose processes are forked from our fork server.

It is what "spawn" and "forkserver" mean in a DataLoader of ours. Queues, events and locks are those
of multiprocessing's own spawn-like contexts, and an object is sent as they send it: pickled with
multiprocessing's reductions (torch's among them), its descriptors beside it. What differs is the
process that forks: it has imported torch and the main module once, leaves no socket in a folder,
and ends its children with the trainer, however that ended.
"""

import contextlib
import io
import multiprocessing.context
import multiprocessing.process
import os
import pickle
from multiprocessing import popen_fork, reduction, resource_tracker, util
from multiprocessing.connection import wait
from typing import Any, ClassVar

from .fork_client import ForkServer, send_request
from .fork_server import MAX_DESCRIPTORS, NO_GUARD, NUMBER, is_importing_main
from .received_process import SentDescriptor
from .request import environment, memory_file

START_S = 120.0
# The exit code where nobody could learn it, because the fork server was killed; as
# multiprocessing's forkserver has it.
UNKNOWN_CODE = 255
_resource_tracker: Any = resource_tracker._resource_tracker
_close_fds: Any = util.close_fds  # type: ignore[attr-defined]
_set_spawning_popen: Any = multiprocessing.context.set_spawning_popen


class _Popen(popen_fork.Popen):
    """The trainer's handle of a process; `sentinel` is readable when that has ended."""

    method = "forkserver"
    # What multiprocessing.reduction asks for while an object is pickled for this process.
    DupFd = SentDescriptor

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._descriptors: list[int] = []
        self._fork_server: ForkServer | None = None
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        """Take a descriptor along; return its place."""
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    def _launch(self, process: Any) -> None:
        """Send the process to the fork server; raises what pickling raises."""
        if is_importing_main():
            raise RuntimeError(NO_GUARD)
        request = memory_file(self._pickled(process))
        self.sentinel, status = os.pipe()
        parent, lifeline = os.pipe()
        self.finalizer = util.Finalize(self, _close_fds, (lifeline, self.sentinel))
        passed = [request, status, parent, _resource_tracker.getfd(), *self._descriptors]
        try:
            if len(passed) > MAX_DESCRIPTORS:
                raise ValueError(
                    f"a worker process is sent {len(passed)} open files (each shared tensor is "
                    f"one), at most {MAX_DESCRIPTORS} can be: let it open them itself, or pass "
                    "multiprocessing_context='fork'"
                )
            self._fork_server = send_request(b"process", passed, [], START_S)
        except BaseException:
            self.finalizer()
            raise
        finally:
            for descriptor in (request, status, parent):
                os.close(descriptor)
        pid = self._read_number()
        if pid is None:
            raise RuntimeError("the workers' fork server was killed while it started a process")
        self.pid = pid

    def _pickled(self, process: object) -> bytes:
        stream = io.BytesIO(pickle.dumps(environment()))
        stream.seek(0, io.SEEK_END)
        _set_spawning_popen(self)
        try:
            reduction.dump(process, stream)
        finally:
            _set_spawning_popen(None)
        return stream.getvalue()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None while the process runs; without WNOHANG wait for it."""
        if self.returncode is None and wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            code = self._read_number()
            self.returncode = UNKNOWN_CODE if code is None else code
        return self.returncode

    def _read_number(self) -> int | None:
        """Return the pid or the exit code; None if the fork server has ended without."""
        with contextlib.suppress(OSError):
            number = os.read(self.sentinel, NUMBER.size)
            if number:
                return int(NUMBER.unpack(number)[0])
        return None

    def _send_signal(self, sig: int) -> None:
        # By its parent: somebody else may have the number of a process that has ended.
        if self.returncode is None and self._fork_server is not None:
            self._fork_server.signal(self.pid, sig)


class CleanProcess(multiprocessing.process.BaseProcess):
    """A process that is forked from the fork server."""

    _start_method: ClassVar[str] = "forkserver"

    @staticmethod
    def _Popen(process: multiprocessing.process.BaseProcess) -> _Popen:  # noqa: N802
        return _Popen(process)


class CleanContext(multiprocessing.context.BaseContext):
    """Starts processes by the fork server; the rest is multiprocessing's."""

    _name = "forkserver"
    Process = CleanProcess


_context = CleanContext()


def clean_context() -> CleanContext:
    """Return the context for `DataLoader(multiprocessing_context=...)`, one for all loaders."""
    return _context
