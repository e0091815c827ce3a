"""Workers that take no SIGTERM are ended all the same."""

import multiprocessing
import os
import signal

from counterpoise.workers.processes.ending import end_processes


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_process_is_killed() -> None:
    context = multiprocessing.get_context("fork")
    stopped = context.Process(target=_stop)
    stopped.start()
    assert stopped.pid is not None
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    end_processes([stopped], grace_s=0.1)
    assert stopped.exitcode == -signal.SIGKILL
