"""Workers that take no SIGTERM are ended all the same."""

import multiprocessing
import os
import signal
from typing import Any

from counterpoise.workers.processes.ending import end_processes


def _stop(ready: Any) -> None:
    ready.send(None)
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_process_is_killed() -> None:
    context = multiprocessing.get_context("fork")
    receiver, ready = context.Pipe(duplex=False)
    stopped = context.Process(target=_stop, args=(ready,))
    stopped.start()
    receiver.recv()
    end_processes([stopped], grace_s=0.1)
    assert stopped.exitcode == -signal.SIGKILL
