"""The trainer's side of its zygote: starts it, hands it requests, hangs up.

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
import sys
import threading
from pathlib import Path

from .request import memory_file
from .zygote import MESSAGE_BYTES

_FAREWELL_S = 8.0


class Zygote:
    """The trainer's link to its zygote."""

    def __init__(self, preparation: dict[str, object]) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = (
            f"import sys; sys.path[:] = {preparation['sys_path']!r}; "
            f"from {__package__}.zygote import main; main({theirs.fileno()}, {os.getpid()})"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *flags, "-P", "-c", code],
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
        """Raise RuntimeError with its words if it could not start."""
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

    def close(self, patience_s: float = _FAREWELL_S) -> None:
        """Hang up and wait until it is gone, with all its pools."""
        self.link.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self, supervisor: int) -> None:
        """Kill a supervisor, if it is still there."""
        with contextlib.suppress(OSError):
            self.link.send(b"kill %d" % supervisor)

    def forget(self) -> None:
        """Let go of it in a forked copy of the trainer, whose child it is not."""
        self.link.close()
        self.process.returncode = 0


_lock = threading.Lock()
_zygotes: dict[object, Zygote] = {}  # one, unless the main module changes


def send_request(
    descriptors: list[int], shared: list[int], modules: list[str], timeout_s: float
) -> Zygote:
    """Hand a request to the zygote; starts one if there is none or it has died.

    `descriptors` are the request's file, the reports and what to watch; `shared` belong to the
    request. A new zygote imports `modules` at once.
    """
    preparation = _preparation() | {"modules": modules}
    main = preparation.get("init_main_from_name"), preparation.get("init_main_from_path")
    message, descriptors = [b"start %d" % len(shared)], [*descriptors, *shared]
    with _lock:
        if main in _zygotes:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(_zygotes[main].link, message, descriptors)
                return _zygotes[main]
            _zygotes.pop(main).close()
        zygote = Zygote(preparation)
        try:
            zygote.wait_until_ready(timeout_s)
        except BaseException:
            zygote.close(patience_s=0)
            raise
        _zygotes[main] = zygote
        socket.send_fds(zygote.link, message, descriptors)
        return zygote


def _preparation() -> dict[str, object]:
    """What multiprocessing's spawn tells a child, without fixing the trainer's start method."""
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
    """A descriptor that becomes readable when this process ends, where the kernel has them."""
    try:
        return [os.pidfd_open(os.getpid())]
    except OSError:
        return []


def close_zygotes() -> None:
    """At the interpreter's exit, when no pool is left."""
    for zygote in _zygotes.values():
        zygote.close()


def _forget_zygotes() -> None:
    global _lock
    _lock = threading.Lock()
    for zygote in _zygotes.values():
        zygote.forget()
    _zygotes.clear()


os.register_at_fork(after_in_child=_forget_zygotes)
