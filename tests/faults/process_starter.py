"""Starts the processes of `make faults` by forking one that has imported everything.

Importing torch takes longer than an epoch with faults, so one process does it once and forks every
balancer, worker and trainer: processes of their own with their own sockets, which run the real
commands. The forking process has one thread, opens no socket but the one to the harness, and ends
with the harness; its children end with it. Nobody has to wait for children: the harness holds a
pidfd of each.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

REQUEST_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
PRELOADED = (
    "counterpoise.tools.services.balancer",
    "tests.faults.trainer",
    "tests.faults.killing_trainer",
    "counterpoise.tools.services.worker",
    "counterpoise.workers.vision_language.transform",
)
MARK = "COUNTERPOISE_FAULTS"


class ChildProcess:
    """A running process; call `close` when it has ended."""

    def __init__(self, pid: int, handle: int) -> None:
        """`handle` is a pidfd."""
        self.pid = pid
        self._handle = handle

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether the process has ended, waiting for it up to `within_s`."""
        poller = select.poll()
        poller.register(self._handle, select.POLLIN)
        return bool(poller.poll(1000 * within_s))

    def close(self) -> None:
        """Close the handle."""
        os.close(self._handle)


class ProcessStarter:
    """Starts the forking process, and child processes from it."""

    def __init__(self, temporary: Path, mark: str) -> None:
        """Children write temporary files to `temporary`, and have `mark` in their environment."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                words,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
            )
        self.pid = self._process.pid

    def start(self, words: Sequence[str], log: Path) -> ChildProcess:
        """Start a command, its output in a log; OSError if the forking process has ended."""
        answer, handles = b"", list[int]()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._link.send(json.dumps([list(words), str(log)]).encode())
            answer, handles, _, _ = socket.recv_fds(self._link, REQUEST_BYTES, 1)
        if not answer:
            raise OSError("the process that starts the others has ended; its error is above")
        return ChildProcess(int(answer), handles[0])

    def close(self) -> None:
        """End the forking process, and with it all that it has started."""
        self._link.close()
        self._process.wait()


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends; end it now if that is too late."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def main(link: socket.socket, harness: int) -> None:
    """Fork a process for every request until the harness closes the link."""
    die_with(harness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_everything()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while request := link.recv(REQUEST_BYTES):
        words, log = json.loads(request)
        pid = _fork(link, words, Path(log))
        handle = os.pidfd_open(pid)
        socket.send_fds(link, [b"%d" % pid], [handle])
        os.close(handle)


def _import_everything() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _fork(link: socket.socket, words: list[str], log: Path) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        link.close()
        _run_as_child(parent, words, log)
    return pid


def _run_as_child(parent: int, words: list[str], log: Path) -> NoReturn:
    """Run a command with its output in a log; those that train are the harness' own."""
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        _run(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(words: list[str]) -> None:
    if words[0] == "trainer":
        from .trainer import main as train

        train(words[1:])
    elif words[0] == "killing-trainer":
        from .killing_trainer import main as train_and_kill

        train_and_kill(words[1:])
    else:
        from counterpoise.tools.cli import main as command

        command(words)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
