"""`counterpoise balancer --supervise` starts a balancer again that was killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 60
# A supervisor of a program that tells its number.
PROGRAM = """
import logging, sys
from counterpoise.tools.services.balancer import supervise

logging.basicConfig(format="%(message)s")
try:
    sys.exit(supervise([sys.executable, "-c", sys.argv[1]]))
except RuntimeError as error:
    sys.exit(str(error))
"""
SERVED = """
import os, signal, sys
from counterpoise.workers.processes.ending import end_with_parent

{first}
end_with_parent()
print(os.getpid(), flush=True)
{does}
"""


@pytest.fixture
def start():
    started = []

    def run(does, first="pass"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, SERVED.format(does=does, first=first)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def next_pid(process):
    return int(process.stdout.readline())


def test_one_that_is_killed_is_started_again_and_one_that_ends_is_not(start):
    process = start(
        "signal.sigwait([signal.SIGTERM])",
        first="signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
    )
    first = next_pid(process)
    os.kill(first, signal.SIGABRT)
    second = next_pid(process)
    assert second != first
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert errors == "the balancer was killed by SIGABRT, and is started again\n"


def test_an_error_that_it_reports_is_not_tried_again(start):
    process = start("sys.exit(2)")
    lines, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, len(lines.split())) == (2, 1)


def test_one_that_is_killed_at_once_each_time_is_given_up(start):
    process = start("os.abort()")
    lines, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert len(lines.split()) == 5
    assert "killed by SIGABRT, 5 times in a row" in errors


def test_it_ends_with_its_supervisor(start):
    process = start("signal.pause()")
    child = next_pid(process)
    waiting = os.pidfd_open(child)
    process.kill()
    process.wait(LIMIT_S)
    assert select.select([waiting], [], [], LIMIT_S)[0]
    os.close(waiting)
    assert not Path(f"/proc/{child}/exe").exists()
