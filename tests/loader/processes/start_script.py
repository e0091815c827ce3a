# A script without a guard, or a notebook's cell: the test runs it from a file and from standard
# input. It iterates one data set with torch's loader and with ours, and prints what came.
import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import threading

import numpy as np
import torch
import torch.utils.data
import zmq

import counterpoise as cp

OFFSET = 0


def make_data():
    """Return a data set of a local class with an open file, a shared value and a lambda."""
    path = pathlib.Path(os.environ["COUNTERPOISE_TEST_FILE"])

    class Samples:
        def __init__(self):
            self.file = path.open("rb")
            self.loaded = multiprocessing.Value("i", 0)
            self.cannot_be_pickled = lambda text: float(text) + OFFSET
            self.length = 6

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            with self.loaded.get_lock():
                self.loaded.value += 1
            worker = torch.utils.data.get_worker_info()
            assert worker is not None
            assert worker.num_workers == 2
            # OpenMP: one thread in a worker, whatever the trainer uses
            assert torch.get_num_threads() == 1
            torch.ones(64, 64) @ torch.ones(64, 64)
            return self.cannot_be_pickled(os.pread(self.file.fileno(), 2, 2 * index))

    return Samples()


def count_threads() -> tuple[int, int]:
    """Return how many threads this process has, and how many of them are ZeroMQ's.

    Left out are those that feed a queue of multiprocessing, those that plan, which stand still
    while anybody forks, and those that are just ending: under load, of the epoch before.
    """
    return min(look_at_threads() for _ in range(20))


def look_at_threads() -> tuple[int, int]:
    """Count once; see count_threads."""
    names = {"QueueFeederThread", "counterpoise planning"}
    others = {t.native_id for t in threading.enumerate() if t.name in names}
    counted = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            if int(path.parent.name) not in others:
                counted.append(path.read_text())
    return len(counted), sum(name.startswith("ZMQbg") for name in counted)


def make_loader(kind, data, **given):
    """Return torch's loader or ours."""
    given |= {"num_workers": 2, "batch_size": 2, "collate_fn": lambda samples: samples[::-1]}
    if kind == "torch":
        return torch.utils.data.DataLoader(data, **given)
    balance = cp.Balance(grouping="fixed") if kind == "balanced" else None
    return cp.DataLoader(data, shuffle=False, balance=balance, **given)


def run(kind):
    """Return what two epochs yield, then two loaders at once, then one with persistent workers."""
    global OFFSET
    OFFSET, data = 0, make_data()
    threads.clear()
    first = make_loader(kind, data)
    came = [list(first)]
    # Set at run time: the next epoch forks anew.
    OFFSET, data.length = 100, 8
    came += [list(first)]
    iterator, second = iter(first), make_loader(kind, data)
    head = [next(iterator)]
    came += [list(second), head + list(iterator)]
    third = make_loader(kind, data, persistent_workers=True)
    came += [list(third)]
    OFFSET = 0
    came += [list(third)]
    assert data.loaded.value >= 6 + 5 * 8
    return {"batches": came, "threads": list(threads)}


torch.set_num_threads(2)
torch.ones(300, 300) @ torch.ones(300, 300)  # starts OpenMP's threads
context = zmq.Context()
sockets = [context.socket(zmq.PAIR) for _ in range(2)]
sockets[0].bind("inproc://here")
sockets[1].connect("inproc://here")
sockets[1].send(np.arange(3).tobytes())
threads: list[tuple[int, int]] = []
os.register_at_fork(before=lambda: threads.append(count_threads()))
found = {kind: run(kind) for kind in os.environ["COUNTERPOISE_TEST_KINDS"].split()}
assert sockets[0].recv() == np.arange(3).tobytes()
sys.stdout.write(json.dumps({**found, "zmq threads of the script": count_threads()[1]}))
