"""A trainer for test_kill: trains without end, or until it ends itself as one of ENDS."""

import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import numpy as np

from counterpoise import Ranks

REOPENED = 20


class Samples:
    """Small samples of uneven size."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": np.arange(1 + index % 7), "pixels": np.zeros((index % 5, 3000))}


class Deadly(Samples):
    """Samples that end the trainer of whoever reads one."""

    def __init__(self):
        self.trainer = os.getpid()

    def __getitem__(self, index):
        os.kill(self.trainer, signal.SIGKILL)
        return super().__getitem__(index)


def tokens(sample):
    """Return what a sample costs."""
    return {"tokens": len(sample["input_ids"])}


def make(method="forkserver"):
    """Return a loader whose processes are started by a fork server or forked from the trainer."""
    from counterpoise.loader import Balance, DataLoader

    return DataLoader(
        Samples(), num_workers=2, ranks=Ranks(virtual=2), shuffle=True, cost=tokens,
        balance=Balance(grouping="isf", budgets={"tokens": 20}, accumulate="auto",
                        samples_per_step=16, layout="padded"),
        multiprocessing_context=method,
    )  # fmt: skip


def train(end=lambda _: None, method="forkserver"):
    """Train; `end` is called with the loader after the first step."""
    loader = make(method)
    while True:
        for step in loader.steps():
            assert step.microbatches
            end(loader)


def send_itself(number):
    os.kill(os.getpid(), number)
    while True:  # until Python gets to the signal
        pass


def fail(_):
    raise ValueError("the model has diverged")


def fork_and_go_on(loader):
    """A child that just ends must not end the parent's processes: two more epochs need them."""
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    assert sum(len(list(loader.steps())) for _ in range(2)) == 8
    os._exit(0)


def kill_fork_server(loader):
    """Another one is started."""
    server = vars(forkserver)["_forkserver"]._forkserver_pid
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    assert len(list(loader.steps())) == 4
    os._exit(0)


def kill_worker(loader):
    """The loop ends with torch's error, unless the worker has done all its tasks: then again."""
    try:
        while True:
            steps = loader.steps()
            os.kill(loader._balanced._connection._tasks._workers[0].pid, signal.SIGKILL)
            list(steps)
    except RuntimeError:
        os._exit(7)


def die_in_trial(_):
    """Killed while a worker finds out what samples cost."""
    from counterpoise.loader import DataLoader

    len(DataLoader(Deadly(), batch_size=2, shuffle=True, balance="auto", ranks=Ranks(virtual=1)))


def reopen(loader):
    """Open and close loaders; no file descriptor may be left."""
    from counterpoise.loader import DataLoader

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    loader.close()
    before = descriptors()
    for _ in range(REOPENED):
        plain = DataLoader(
            Samples(), num_workers=1, batch_size=None, multiprocessing_context="fork"
        )
        next(iter(plain))
        plain.close()
    next(loader.steps())
    loader.close()
    os._exit(0 if descriptors() == before else 1)


# How a trainer ends itself, what its processes come from, and its exit status (below zero: the
# signal that ended it).
ENDS = {
    "SIGTERM": (lambda _: send_itself(signal.SIGTERM), "fork", -signal.SIGTERM),
    "SIGINT": (lambda _: send_itself(signal.SIGINT), "fork", -signal.SIGINT),
    "an exception": (fail, "fork", 1), "sys.exit": (lambda _: sys.exit(5), "forkserver", 5),
    "os._exit": (lambda _: os._exit(6), "fork", 6), "a fork's end": (fork_and_go_on, "fork", 0),
    "no fork server": (kill_fork_server, "forkserver", 0), "no worker": (kill_worker, "fork", 7),
    "the trial of auto": (die_in_trial, "fork", -signal.SIGKILL),
    "many loaders": (reopen, "fork", 0),
}  # fmt: skip


def main(end: str) -> None:
    """Train until killed, or end so."""
    train(*ENDS.get(end, ())[:2])
