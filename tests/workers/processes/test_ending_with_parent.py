"""A plain loader's worker ends with its trainer, also with one that ended before it looked."""

import multiprocessing
import os
import select
import signal
import time

import pytest

from counterpoise.workers.processes.ending import end_with_parent

LIMIT_S = 60.0


def _worker(trainer: int, is_late: bool, writing: int) -> None:
    os.write(writing, str(os.getpid()).encode())
    while is_late and os.getppid() == trainer:
        time.sleep(0.001)
    end_with_parent()
    while True:
        signal.pause()


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "too late"])
def test_a_worker_ends_with_its_trainer(is_late: bool) -> None:
    reading, writing = os.pipe()  # the worker alone holds its other end
    pid = os.fork()
    if not pid:
        worker = multiprocessing.get_context("fork").Process(
            target=_worker, args=(os.getpid(), is_late, writing)
        )
        worker.start()
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    worker_pid = int(os.read(reading, 20))
    has_ended = bool(select.select([reading], [], [], LIMIT_S)[0])
    if not has_ended:
        os.kill(worker_pid, signal.SIGKILL)
    os.close(reading)
    assert has_ended
