"""Workers that end: by a signal, named, or by themselves."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise import DataLoader
from counterpoise.loader.plain import own_workers
from counterpoise.loader.plain.iterators import WorkersIterator
from counterpoise.loader.plain.torch_names import killed_worker
from counterpoise.workers.processes.ending import end_processes


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
def test_in_a_thread(end: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the main thread hears of it at once: others look.
    monkeypatch.setattr(WorkersIterator._try_get_data, "__defaults__", (0.2,))
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


@pytest.mark.parametrize("how", [{}, {"balance": "fixed", "cost": {"n": [1, 1]}, "shuffle": True}])
def test_torch_raises_nothing_for_workers_that_end_with_their_process(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = iter(DataLoader(Deadly("raise"), num_workers=1, **how))
    next(begun)
    (mine,) = [each for each in own_workers._all if not each._shutdown]
    is_reported: list[bool] = []

    def end(processes: Any) -> None:
        is_reported.append(mine._worker_pids_set)
        end_processes(processes)

    monkeypatch.setattr(own_workers, "_all", {mine})
    monkeypatch.setattr(own_workers, "end_processes", end)
    own_workers._end_all()
    assert is_reported == [False]


def test_only_signals_are_named() -> None:
    codes = [None, 0, 3, -11, -9]
    workers = [SimpleNamespace(pid=n, exitcode=code) for n, code in enumerate(codes)]
    text = killed_worker(workers)
    assert text == "DataLoader worker (pid 3) is killed by signal: Segmentation fault. "
    assert killed_worker(workers[:3]) is None
