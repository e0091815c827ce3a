"""The Popen of these tests ends what it has started, whatever has ended before."""

import os
import signal
import sys

from tests.forking.popen import Popen


def test_a_process_is_killed_when_the_one_that_forked_it_is_gone() -> None:
    process = Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    status = process._status
    # What is read of the pipe when its other end has been closed, as at the end of the tests.
    process._status, gone = os.pipe()
    os.close(gone)
    process.kill()
    process._status = status
    assert process.wait(60) == -signal.SIGKILL
