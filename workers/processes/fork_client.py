"""The trainer's side of its fork server: starts it, sends it requests, closes the link.

A request is an anonymous memory file and the ends of pipes, passed over the socket: whatever it
holds, the message itself is a few bytes and never blocks.
"""

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from .clean_interpreter import clean_command
from .fork_server import MESSAGE_BYTES
from .request import memory_file

_CLOSE_S = 8.0


class ForkServer:
    """The trainer's link to its fork server."""

    def __init__(self, preparation: dict[str, object]) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path: Any = preparation["sys_path"]
        call = f"m.main({theirs.fileno()}, {os.getpid()})"
        with theirs:
            self.process = subprocess.Popen(
                clean_command(f"{__package__}.fork_server", call, path),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        descriptors = [memory_file(pickle.dumps(preparation)), *own_pidfd()]
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(self.link, [b"prepare"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raise RuntimeError with the server's own message if it could not start."""
        self.link.settimeout(timeout_s)
        answer = b""
        try:
            answer = self.link.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            pass
        except TimeoutError:
            answer = b"importing the main module took more than %d s" % timeout_s
        self.link.settimeout(None)
        if answer != b"ready":
            reason = answer.decode(errors="replace").removeprefix("failed ")
            raise RuntimeError(f"cannot start worker processes: {reason or 'their parent died'}")

    def close(self, patience_s: float = _CLOSE_S) -> None:
        """Close the link and wait until the server and all its pools have ended."""
        self.link.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def signal(self, child: int, number: int) -> None:
        """Send a signal to a process that the server has forked, if it is still there."""
        with contextlib.suppress(OSError):
            self.link.send(b"signal %d %d" % (child, number))

    def forget(self) -> None:
        """Close the link in a forked copy of the trainer, whose child the server is not."""
        self.link.close()
        self.process.returncode = 0


_lock = threading.Lock()
_fork_servers: dict[object, ForkServer] = {}  # one, unless the main module changes


def send_request(
    message: bytes, descriptors: list[int], modules: list[str], timeout_s: float
) -> ForkServer:
    """Send a request to the fork server; start one if there is none or it has died.

    `message` and `descriptors` are as `fork_server._serve_requests` reads them. A new fork server
    imports `modules` at once.
    """
    preparation = _preparation() | {"modules": modules}
    main = preparation.get("init_main_from_name"), preparation.get("init_main_from_path")
    with _lock:
        if main in _fork_servers:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(_fork_servers[main].link, [message], descriptors)
                return _fork_servers[main]
            _fork_servers.pop(main).close()
        fork_server = ForkServer(preparation)
        try:
            fork_server.wait_until_ready(timeout_s)
        except BaseException:
            fork_server.close(patience_s=0)
            raise
        _fork_servers[main] = fork_server
        socket.send_fds(fork_server.link, [message], descriptors)
        return fork_server


def _preparation() -> dict[str, object]:
    """Return what spawn sends a child, without fixing the trainer's start method."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    preparation = multiprocessing.spawn.get_preparation_data("counterpoise")
    if chosen is None:
        multiprocessing.set_start_method(None, force=True)
        del preparation["start_method"]
    # a script from standard input has a name and no file
    if not Path(str(preparation.get("init_main_from_path", "/"))).exists():
        del preparation["init_main_from_path"]
    # an AuthenticationString refuses to be pickled
    preparation["authkey"] = bytes(multiprocessing.current_process().authkey)
    preparation["sys_path"] = [str(entry) for entry in preparation["sys_path"]]
    return preparation


def own_pidfd() -> list[int]:
    """Return a descriptor that becomes readable when this process ends, if the kernel has those."""
    try:
        return [os.pidfd_open(os.getpid())]
    except OSError:
        return []


def close_fork_servers() -> None:
    """Close all fork servers; at the interpreter's exit, when no pool is left."""
    for fork_server in _fork_servers.values():
        fork_server.close()


def _forget_fork_servers() -> None:
    global _lock
    _lock = threading.Lock()
    for fork_server in _fork_servers.values():
        fork_server.forget()
    _fork_servers.clear()


os.register_at_fork(after_in_child=_forget_fork_servers)
