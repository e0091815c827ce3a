"""The process that all pools of a trainer are forked from: it imports once, then forks quickly.

A trainer has threads, locks and perhaps a CUDA context, so forking it is unsafe, and starting a
new interpreter for every worker costs seconds. The fork server is one new interpreter per trainer:
it imports torch and the trainer's main module (as `__mp_main__`, as multiprocessing's spawn
does), and then does nothing but fork: a supervisor for a pool (`start`), or one process of
multiprocessing's (`process`, see context.py), whose pid and exit code it reports over a pipe.

Its only tie to the trainer is a socket. First the kernel is told to kill the fork server with the
trainer, because imports cannot be interrupted; once they are done, the socket's end is its end:
it terminates the children that are left, waits for them, and goes.
"""

import contextlib
import gc
import importlib
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from ..arena.malloc import share_one_heap
from .forked_child import fork_with_default_signals
from .pool_job import Report, locate_error
from .supervisor import die_with, outlive, run, send_report, wake_on

END_S = 3.0
MESSAGE_BYTES = 4096
# How pids and exit codes are written to the pipe of a process.
NUMBER = struct.Struct("=q")
MAX_DESCRIPTORS = 253
# A process' descriptors: its request, its status pipe, its parent's sentinel, the resource
# tracker's, then its own.
PLACE_OF_STATUS = 1
# A child's pid, and the pipe that its exit code is written to, if somebody asked for it.
Children = dict[int, int | None]
PRELOADED = (
    "numpy",
    "torch",
    "torch.utils.data",
    "PIL.Image",
    ".received_process",
    "..daemon.loop",
)
NO_GUARD = (
    "a loader with workers was started while the workers' process was importing this script; put "
    "the script's work below `if __name__ == '__main__':`, or pass multiprocessing_context='fork'"
)


def is_importing_main() -> bool:
    """Return whether this is a pool's process that is importing the trainer's main module."""
    return bool(getattr(multiprocessing.process.current_process(), "_inheriting", False))


def main(descriptor: int, trainer: int) -> NoReturn:
    """Be the fork server of the process `trainer`, at the other end of the socket `descriptor`."""
    share_one_heap()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(trainer)
    link = socket.socket(fileno=descriptor)
    try:
        preparation, *watched = _receive_preparation(link)
        _import_what_workers_need(_read_preparation(preparation))
    except BaseException as error:
        with contextlib.suppress(OSError):
            link.send(b"failed " + locate_error(error).encode()[: MESSAGE_BYTES - 16])
        os._exit(1)
    link.send(b"ready")
    outlive(trainer)
    _serve_requests(link, watched)
    os._exit(0)


def _receive_preparation(link: socket.socket) -> list[int]:
    return list(socket.recv_fds(link, MESSAGE_BYTES, 2)[1])


def _read_preparation(descriptor: int) -> dict[str, object]:
    with os.fdopen(descriptor, "rb") as file:
        preparation: dict[str, object] = pickle.load(file)
    return preparation


def _import_what_workers_need(preparation: dict[str, object]) -> None:
    """Import our modules, then the trainer's main module, in that order."""
    # OpenBLAS would start its threads on import, and threads do not survive a fork.
    limited = "OPENBLAS_NUM_THREADS" not in os.environ
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in PRELOADED:
        importlib.import_module(name, __package__)
    if limited:
        del os.environ["OPENBLAS_NUM_THREADS"]
    sys.modules["torch"].set_num_threads(1)
    process = multiprocessing.process.current_process()
    process._inheriting = True  # type: ignore[attr-defined]
    try:
        multiprocessing.spawn.prepare(preparation)
        _import_quietly(preparation["modules"])
    finally:
        del process._inheriting  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()


def _import_quietly(modules: Any) -> None:
    """Import what the first job needs; one that cannot be imported is the job's error to report."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _serve_requests(link: socket.socket, watched: Sequence[int]) -> None:
    """Fork a child for every request until the trainer is gone, then end those left."""
    wake, waker = wake_on((signal.SIGCHLD, signal.SIGTERM))
    children: Children = {}
    poller = select.poll()
    for descriptor in (link.fileno(), wake, *watched):
        poller.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        # The trainer ended (its pidfd), or somebody ends the fork server alone.
        if ready.intersection(watched):
            break
        if wake in ready and signal.SIGTERM in os.read(wake, 4096):
            break
        _reap(children)
        if link.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:  # the trainer has closed the link
            break
        word, *numbers = message.split()
        ours = (link.fileno(), wake, waker, *watched, *filter(None, children.values()))
        # Only a child is signalled: another process may have the number of one that has ended.
        if word == b"signal" and int(numbers[0]) in children:
            os.kill(int(numbers[0]), int(numbers[1]))
        elif word == b"start":
            children[_fork_supervisor(descriptors, int(numbers[0]), unused=ours)] = None
        elif word == b"process":
            children[_fork_process(descriptors, unused=ours)] = os.dup(descriptors[PLACE_OF_STATUS])
        for descriptor in descriptors:
            os.close(descriptor)
    link.close()
    _end_children(children, wake)


def _fork_supervisor(descriptors: list[int], shared: int, unused: Sequence[int]) -> int:
    fork_server = os.getpid()
    pid = fork_with_default_signals()
    if pid == 0:
        for descriptor in unused:
            os.close(descriptor)
        os.setsid()
        request, report, *watching = descriptors[: len(descriptors) - shared]
        _be_supervisor(
            fork_server, request, descriptors[len(descriptors) - shared :], report, watching
        )
    return pid


def _fork_process(descriptors: list[int], unused: Sequence[int]) -> int:
    """Fork a process of multiprocessing's, and report its pid."""
    fork_server = os.getpid()
    pid = fork_with_default_signals()
    if pid == 0:
        try:
            die_with(fork_server)
            for descriptor in (*unused, descriptors[PLACE_OF_STATUS]):
                os.close(descriptor)
            from .received_process import run_process

            code = run_process(descriptors)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            sys.stderr.flush()
            os._exit(code)
    report_number(descriptors[PLACE_OF_STATUS], pid)
    return pid


def report_number(descriptor: int, number: int) -> None:
    """Write a pid or an exit code to the pipe of a process, if there is a reader."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, NUMBER.pack(number))


def _be_supervisor(
    fork_server: int, request: int, shared: list[int], report: int, watching: list[int]
) -> NoReturn:
    """Unpickle the job and supervise it; until it runs, a signal to this process ends it."""
    from .request import read_request  # with torch, which this module must not import first

    try:
        die_with(fork_server)
        send_report(report, Report("loading", pid=os.getpid()))
        job = read_request(request, shared)
        outlive(fork_server)
    except BaseException as error:
        message = (
            f"the workers' process could not load the job: {locate_error(error)}; define what it "
            "needs at the top level of a module, or pass multiprocessing_context='fork'"
        )
        send_report(report, Report("failed", pid=os.getpid(), message=message))
        os._exit(1)
    gc.freeze()
    run(job, report, watching)


def _reap(children: Children) -> None:
    """Forget the children that have ended; report the exit codes of processes."""
    for pid, status in list(children.items()):
        with contextlib.suppress(ChildProcessError):
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended == 0:
                continue
            if status is not None:
                report_number(status, os.waitstatus_to_exitcode(code))
        if status is not None:
            os.close(status)
        del children[pid]


def _end_children(children: Children, wake: int) -> None:
    """End the children; a supervisor needs about a second if its workers ignore SIGTERM."""
    for number, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        for pid in children:
            os.kill(pid, number)
        deadline = time.monotonic() + limit_s
        _reap(children)
        while children and (left := deadline - time.monotonic()) > 0:
            if select.select([wake], [], [], left)[0]:
                os.read(wake, 4096)
            _reap(children)
