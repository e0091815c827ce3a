"""`Popen` and `run` of subprocess, for scripts that need torch: forked instead of started anew.

A new interpreter that imports torch takes three seconds of a core, more than what most scripts of
these tests do. One process for each process of pytest imports it once (forked_main.py) and forks
the others: processes of their own, with their own arguments, folder, environment and standard
streams, which run as `__main__` and end as any interpreter does. What differs: all have one hash
seed, and what is decided by the environment while torch is imported is decided already. Tests of
that, and of starting itself, use subprocess.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

REQUEST_BYTES = 1 << 20
NUMBERS = struct.Struct("=q")
# Processes are told by this in their environment; a value has as many characters as a UUID.
MARK = "COUNTERPOISE_TEST_MARK"
NO_MARK = "-" * 36
COMMAND = str(Path(sys.executable).with_name("counterpoise"))


class Popen(subprocess.Popen[Any]):
    """A process that runs `[sys.executable, ...]` or `[COMMAND, ...]`, forked.

    Takes cwd, env, text, and what is connected to the standard streams; nothing else but
    `imported`: modules that the process that forks it has imported besides, once for all that name
    the same ones.
    """

    def __init__(self, words: list[str], *, imported: tuple[str, ...] = (), **given: Any) -> None:
        self._imported = imported
        super().__init__(words, **given)

    def _execute_child(self, args: list[str], *given: Any) -> None:
        """Fork the process; called by Popen once it has made the pipes."""
        cwd, env = given[4:6]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = given[9:15]
        ours = [(p2cread, p2cwrite, 0), (c2pwrite, c2pread, 1), (errwrite, errread, 2)]
        streams = [number if theirs == -1 else theirs for theirs, _, number in ours]
        self._status, theirs = os.pipe()
        request = {
            "words": [str(word) for word in args],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        try:
            self.pid = _server(self._imported).fork(request, [*streams, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(*given[9:15])  # type: ignore[attr-defined]
        self._child_created = True

    def send_signal(self, sig: int) -> None:
        """Send a signal; also at exit, when nobody is left to say if the process has ended."""
        try:
            super().send_signal(sig)
        except RuntimeError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def _internal_poll(self, _deadstate: Any = None) -> int | None:
        return self._ended(0.0)

    def _wait(self, timeout: float | None) -> int | None:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def _ended(self, within_s: float | None) -> int | None:
        """Return the exit status, once there is one: it is written to a pipe."""
        if self.returncode is None and select.select([self._status], [], [], within_s)[0]:
            said = os.read(self._status, NUMBERS.size)
            os.close(self._status)
            if not said:
                raise RuntimeError("the process that forks the tests' processes has ended")
            self.returncode = NUMBERS.unpack(said)[0]
        return self.returncode


def run(
    words: list[str], timeout: float | None = None, **given: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, and return what it wrote: as subprocess.run with capture_output."""
    pipe = subprocess.PIPE
    with Popen(
        words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, **given
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


class Server:
    """The process that the others are forked from, and what it imports besides the usual."""

    def __init__(self, imported: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.forking.forked_main"),
                    *(str(theirs.fileno()), *imported),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, MARK: NO_MARK},
            )

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Return the process id of a new process."""
        message = json.dumps(request).encode()
        assert len(message) < REQUEST_BYTES
        with self._lock:
            socket.send_fds(self._link, [message], descriptors)
            answer = self._link.recv(NUMBERS.size)
        if not answer:
            raise RuntimeError("the process that forks the tests' processes has ended")
        return int(NUMBERS.unpack(answer)[0])

    def close(self) -> None:
        """End the process; those that it has forked go on."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


@functools.cache
def _server(imported: tuple[str, ...]) -> Server:
    """Return the server of this process of pytest, started at the first call."""
    server = Server(imported)
    atexit.register(server.close)
    return server
