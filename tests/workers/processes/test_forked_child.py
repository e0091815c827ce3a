"""A process that is forked from the trainer for the job has nothing of it but a copy of memory."""

import contextlib
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from counterpoise.workers.processes.forked_child import ForkedProcess, fork_child

LIMIT_S = 60.0


def answer_of(question) -> str:
    """Return what a forked child answers: the text that `question` returns there."""
    reading, writing = os.pipe()
    child = fork_child(lambda: os.write(writing, question().encode()), kept=(writing,))
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read().decode()
    assert child.wait(LIMIT_S) == 0
    return answer


def test_it_has_no_descriptor_of_the_trainers(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "file").open("w") as file:

        def opened() -> str:
            kinds = []
            for number in (ours.fileno(), theirs.fileno(), file.fileno()):
                with contextlib.suppress(OSError):
                    kinds.append(str(Path(f"/proc/self/fd/{number}").readlink()))
            return " ".join([*kinds, str(Path("/proc/self/fd/0").readlink())])

        # Their numbers are taken, by a folder that was opened for nothing.
        assert answer_of(opened) == "/ / / /dev/null"


def test_it_leads_a_session_that_no_interrupt_ends():
    def told() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return str(os.getsid(0) == os.getpid())

    assert answer_of(told) == "True"


def test_it_has_no_handler_of_the_trainers(monkeypatch):
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    monkeypatch.setattr(sys, "stderr", None)
    logging.getLogger().addHandler(handler := logging.NullHandler())
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")

            def told() -> str:
                warnings.warn("not an error", stacklevel=1)
                kept = signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
                logs = logging.getLogger("numba").isEnabledFor(logging.CRITICAL)
                return f"{kept} {sys.stderr is None} {gc.isenabled()} {logs}"

            answer = answer_of(told)
    finally:
        gc.enable()
        logging.getLogger().removeHandler(handler)
        signal.signal(signal.SIGUSR1, before)
    assert answer == "False False True False"


def test_what_it_raises_is_printed_and_fails_it(capfd):
    def fails() -> None:
        raise ValueError("not today")

    assert fork_child(fails, ()).wait(LIMIT_S) == 1
    assert "ValueError: not today" in capfd.readouterr().err


def test_who_waits_learns_how_it_ended():
    reading, writing = os.pipe()
    child = fork_child(lambda: os.read(reading, 1) and None, kept=(reading,))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.0)
    child.kill()
    assert child.wait(LIMIT_S) == child.returncode == -signal.SIGKILL
    child.kill()  # of no process
    os.close(reading)
    os.close(writing)


def test_one_that_somebody_else_has_waited_for_has_ended():
    child = fork_child(lambda: None, ())
    os.waitpid(child.pid, 0)
    assert ForkedProcess(child.pid).wait(LIMIT_S) == 0
