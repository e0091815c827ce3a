"""The trainer's handle of its embedded balancer: starts the process, watches it, ends it."""

import atexit
import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from ...balancer.server import embedded
from ...workers.processes.clean_interpreter import clean_command
from ..step.waiting import FIRST_LOG_S

logger = logging.getLogger(__name__)
START_S = 120.0
_CLOSE_S = 4.0
_MESSAGE_BYTES = 4096
PREFIX = "counterpoise-"
# The longest path of a unix socket is 107 bytes.
_LONGEST_DIRECTORY = 80
# OpenBLAS, which numpy loads, starts a thread for each core, and each spins for a tenth of a second
# where workers are being forked. Planning multiplies no matrices.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


def make_socket_directory() -> str:
    """Make a 0700 directory with a path short enough for unix sockets; OSError says what to do."""
    try:
        root = tempfile.gettempdir()
        # The kernel counts bytes, of which a letter outside ASCII has several.
        is_short = len(os.fsencode(root)) < _LONGEST_DIRECTORY
        return tempfile.mkdtemp(prefix=PREFIX, dir=root if is_short else "/tmp")
    except OSError as error:
        raise OSError(
            f"cannot make a directory for sockets: {error}; free some space there, or set TMPDIR "
            "to a directory that can be written to"
        ) from error


def remove_socket_directory(path: str) -> None:
    """Remove a directory of `make_socket_directory`; anything else is left alone."""
    if Path(path).name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)


class EmbeddedBalancer:
    """A running balancer. Closing, dropping or losing the handle ends it.

    A forked copy of the trainer has a handle that does nothing.
    """

    def __init__(self) -> None:
        """Start the process and return at once; workers may connect to `endpoint` already."""
        self._ends = _start()
        self.endpoint = embedded.make_endpoint(self._ends.directory)
        self._finalizer = weakref.finalize(self, _end, self._ends)
        self._finalizer.atexit = False  # _end_all is later than the end of connections

    @property
    def pid(self) -> int:
        """The process id."""
        return self._ends.process.pid

    def fileno(self) -> int:
        """Return the descriptor to poll: when it is readable, `failure` has a reason."""
        return self._ends.report

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until it serves; RuntimeError with its own message if it cannot."""
        ends = self._ends
        if ends.is_ready:
            return
        soon = min(FIRST_LOG_S, timeout_s)
        if not select.select([ends.report], [], [], soon)[0]:
            logger.warning(
                "waits for the balancer's process (pid %d) to start: it loads the planning kernels",
                self.pid,
            )
            if not select.select([ends.report], [], [], timeout_s - soon)[0]:
                raise RuntimeError(f"the balancer's process was not ready after {timeout_s:.0f} s")
        reason = self._read_refusal()
        if reason:
            raise RuntimeError(reason)

    def failure(self) -> str:
        """Return why there is no balancer any more, empty while there is one."""
        ends = self._ends
        if ends.report < 0:
            return "the balancer's process was ended"
        if not select.select([ends.report], [], [], 0)[0]:
            return ""
        if not ends.is_ready:  # who waits for the job, not for the process, learns it here
            return self._read_refusal()
        text = os.read(ends.report, _MESSAGE_BYTES).decode(errors="replace")
        return f"the balancer failed: {text}" if text else self._how_it_ended()

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._finalizer()

    def _read_refusal(self) -> str:
        """Read the first report; return "" if it says that the balancer serves."""
        ends = self._ends
        text = os.read(ends.report, len(embedded.READY))  # another report may follow at once
        if text == embedded.READY:
            ends.is_ready = True
            return ""
        text += os.read(ends.report, _MESSAGE_BYTES)
        reason = text.decode(errors="replace") or self._how_it_ended()
        return f"the balancer could not start: {reason}"

    def _how_it_ended(self) -> str:
        process = self._ends.process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_CLOSE_S)
        code = process.returncode
        how = "in an unknown way" if code is None else f"with status {code}"
        if code is not None and code < 0:
            how = f"with {signal.Signals(-code).name}"
        return f"the balancer's process (pid {process.pid}) ended {how}"


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Ends:
    """The trainer's ends of the balancer's pipes."""

    process: subprocess.Popen[bytes]
    lifeline: int
    report: int
    directory: str
    is_ready: bool = False

    def release(self) -> None:
        """Close the lifeline and the reports."""
        lifeline, self.lifeline = self.lifeline, -1
        report, self.report = self.report, -1
        for descriptor in (lifeline, report):
            if descriptor >= 0:
                os.close(descriptor)


_open: "weakref.WeakSet[_Ends]" = weakref.WeakSet()


def _start() -> _Ends:
    """Start the balancer as a new interpreter."""
    directory = make_socket_directory()
    watching, lifeline = os.pipe()
    reading, report = os.pipe()
    try:
        with embedded.open_listener(directory) as listening:
            call = f"m.main({directory!r}, {listening.fileno()}, {report})"
            process = subprocess.Popen(
                clean_command(embedded.__name__, call), stdin=watching,
                env=os.environ | _ENVIRONMENT, pass_fds=(listening.fileno(), report),
                start_new_session=True,
            )  # fmt: skip
    except BaseException:
        os.close(lifeline)
        os.close(reading)
        remove_socket_directory(directory)
        raise
    finally:
        os.close(watching)
        os.close(report)
    ends = _Ends(process, lifeline, reading, directory)
    _open.add(ends)
    return ends


def _end(ends: _Ends) -> None:
    """End a balancer and wait for it; once, and not in a forked copy of the trainer."""
    if ends not in _open:
        return
    _open.discard(ends)
    ends.release()
    try:
        ends.process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        ends.process.kill()
        ends.process.wait()
    remove_socket_directory(ends.directory)


def _end_all() -> None:
    for ends in list(_open):
        _end(ends)


def _forget_all() -> None:
    """Close everything of the trainer's in a forked copy of it, whose child the balancer is not."""
    for ends in list(_open):
        ends.release()
        ends.process.returncode = 0
    _open.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
