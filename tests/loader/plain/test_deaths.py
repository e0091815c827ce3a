"""Workers that end: by a signal, named, and raised where nothing is lost, or by themselves."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise import DataLoader
from counterpoise.loader.plain.deaths import killed_worker
from counterpoise.workers.signals.holding import raise_held, uninterrupted


class Deadly:
    """A data set whose second sample kills or ends its worker, or raises."""

    def __init__(self, end: str) -> None:
        self.end = end

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 0:
            return index
        if self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.end == "exit":
            os._exit(3)
        raise RuntimeError("DataLoader worker of my own")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("kill", r"DataLoader worker \(pid \d+\) is killed by signal: Killed"),
        ("exit", "exited unexpectedly"),
        ("raise", "of my own"),
    ],
)
def test_in_a_thread(end: str, text: str) -> None:
    data: Any = Deadly(end)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=text):
        pool.submit(list, DataLoader(data, num_workers=1)).result()


@pytest.mark.filterwarnings("ignore:.pin_memory.")
@pytest.mark.parametrize("pinned", [False, True])
def test_workers_end_by_themselves_where_the_garbage_collector_ends_the_loop(pinned: bool) -> None:
    data: Any = Deadly("raise")
    iterator: Any = iter(DataLoader(data, num_workers=2, pin_memory=pinned))
    terminated: list[int] = []

    def terminate(worker: Any) -> None:
        terminated.append(worker.pid)
        worker.kill()

    for worker in iterator._workers:
        worker.terminate = partial(terminate, worker)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert not terminated  # torch waits 5 s for each of its own in this case, and then does that


def kill_and_see_it_end(worker: Any) -> bool:
    """Kill a worker; return True unless torch raises that at once, as it does here."""
    worker.kill()
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # SIGCHLD has come by then
    return True


def test_a_death_is_raised_where_the_trainer_waits() -> None:
    data: Any = range(100)
    iterator: Any = iter(DataLoader(data, num_workers=2))
    assert uninterrupted(lambda: kill_and_see_it_end(iterator._workers[1]))()
    with pytest.raises(RuntimeError, match="killed by signal"):
        list(iterator)


def test_the_exit_status_of_a_worker_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of another comes when the status was taken from the kernel, and is not kept yet."""
    data: Any = range(100)
    iterator: Any = iter(DataLoader(data, num_workers=2))
    (first, second), taking = iterator._workers, os.waitpid

    def take(pid: int, options: int) -> tuple[int, int]:
        found = taking(pid, options)
        if found[0] == first.pid:
            kill_and_see_it_end(second)
        return found

    monkeypatch.setattr(os, "waitpid", take)
    iterator._workers_done_event.set()
    iterator._index_queues[0].put(None)
    first.join()
    assert first.exitcode == 0
    with pytest.raises(RuntimeError, match="killed by signal"):
        raise_held()


def test_only_signals_are_named() -> None:
    codes = [None, 0, 3, -11, -9]
    workers = [SimpleNamespace(pid=n, exitcode=code) for n, code in enumerate(codes)]
    text = killed_worker(workers)
    assert text == "DataLoader worker (pid 3) is killed by signal: Segmentation fault. "
    assert killed_worker(workers[:3]) is None
