"""The process that tests/forking/popen.py forks others from, and what a forked one does.

It has one thread and imports what most scripts need. A forked process leaves `serve` with its
program, which runs at the top of this module, so that the interpreter ends as after any script.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing.process
import os
import select
import signal
import socket
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

from tests.forking.popen import COMMAND, MARK, NUMBERS, REQUEST_BYTES

PRELOADED = (
    "torch", "torch.utils.data", "torch.distributed", "counterpoise.loader",
    "counterpoise.tools.cli", "counterpoise.workers.vision_language.transform",
    "counterpoise.balancer.server.loop", "counterpoise.workers.daemon.jobs",
)  # fmt: skip
OWN_PATHS = [*sys.path[:1], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
OTHER_PATHS = [path for path in sys.path if path not in OWN_PATHS]


def serve(link: socket.socket) -> dict[str, Any]:
    """Fork for every request until the tests are gone; return, in a child, its request."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([link.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(statuses)
        if link.fileno() not in ready:
            continue
        message, received, _, _ = socket.recv_fds(link, REQUEST_BYTES, 4)
        if not message:
            sys.exit()
        *streams, status = received
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for descriptor in (*received, *statuses.values(), wake, waker):
                os.close(descriptor)
            link.close()
            return dict(json.loads(message))
        statuses[pid] = status
        for stream in streams:
            os.close(stream)
        link.send(NUMBERS.pack(pid))


def _report_ended(statuses: dict[int, int]) -> None:
    """Write the exit statuses of children that have ended to their pipes."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with contextlib.suppress(BrokenPipeError):
                os.write(statuses[pid], NUMBERS.pack(os.waitstatus_to_exitcode(status)))
            os.close(statuses.pop(pid))


def become(request: dict[str, Any]) -> tuple[str, str]:
    """Make this process what the request says; return its program's text and file name."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = request["env"]
    _write_mark(environment.get(MARK, ""))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    multiprocessing.process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
    program, *words = request["words"]
    if program == COMMAND:
        words, text, file = [COMMAND, *words], COMMAND_LINE, COMMAND
        first = str(Path(COMMAND).parent)
    else:
        assert program == sys.executable, f"{program} is not a command that can be forked"
        while words[0] == "-W":
            sys.warnoptions.append(words[1])
            warnings._processoptions([words[1]])  # type: ignore[attr-defined]
            words = words[2:]
        if words[0] == "-c":
            text, file, first, words = words[1], "<string>", "", ["-c", *words[2:]]
        else:
            file = str(Path(words[0]).absolute())
            text, first = Path(file).read_text(), str(Path(file).resolve().parent)
    sys.argv = words
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [first, *filter(None, paths), *OTHER_PATHS]
    return text, file


COMMAND_LINE = """
import sys
from counterpoise.tools.cli import main
sys.exit(main())
"""


def _write_mark(mark: str) -> None:
    """Show a mark in /proc/PID/environ, which has the environment that a process began with."""
    if mark:
        find = ctypes.CDLL(None).getenv
        find.restype = ctypes.c_void_p
        place = find(MARK.encode())
        assert len(mark) == len(ctypes.string_at(place))
        ctypes.memmove(place, mark.encode(), len(mark))


def _print_error(kind: Any, error: BaseException, trace: Any) -> None:
    """Print an error as the interpreter would, had it run the program itself."""
    while trace and trace.tb_frame.f_code.co_filename != _file:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not longer than the tests
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for _name in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()
    _text, _file = become(serve(socket.socket(fileno=int(sys.argv[1]))))
    _own, _module = sys.modules["__main__"], types.ModuleType("__main__")
    _module.__dict__.update(__file__=_file, __builtins__=__builtins__)
    sys.modules["__main__"] = _module
    sys.excepthook = _print_error
    exec(compile(_text, _file, "exec"), _module.__dict__)
