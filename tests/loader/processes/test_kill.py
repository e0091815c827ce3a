"""A trainer that is killed at any moment leaves no process, no socket and no shared memory."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.forking.popen import MARK, Popen
from tests.loader.processes import kill_trainer

pytestmark = pytest.mark.slow

TRAINER = Path(__file__).with_name("kill_trainer.py")
SHARED_MEMORY = Path("/dev/shm")
# A fork server sees that its trainer has ended when it has imported torch, which takes seconds on a
# loaded machine.
STARTS_WITHIN_S, ENDS_WITHIN_S = 60.0, 60.0


class Trainers:
    """Processes of kill_trainer.py and their descendants, told by a mark in their environment."""

    def __init__(self, folder, *words):
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.folder = folder
        name, value = self.mark.split("=")
        self.process = Popen(
            [sys.executable, str(TRAINER), *words],
            env={**os.environ, name: value, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.shared_memory = set(SHARED_MEMORY.iterdir())

    def fork(self, end=""):
        """Return the process id of a new trainer, which ends itself in a manner of kill_trainer."""
        self.process.stdin.write(f"{end}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def status(self):
        """Wait until the trainer that was forked last has ended; return its exit status."""
        return int(self.process.stdout.readline())

    def let_run(self, for_s):
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(for_s)

    def left(self, but=()):
        """Return what there still is: processes, the pools' folders, shared memory."""
        processes = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            pid = int(path.parent.name)
            try:
                if pid not in but and self.mark.encode() in path.read_bytes():
                    processes.append(pid)
            except OSError:
                continue
        new = [path.name for path in set(SHARED_MEMORY.iterdir()) - self.shared_memory]
        names = [name for name in new if "counterpoise" in name or f"_{self.process.pid}_" in name]
        return processes + names + [path.name for path in self.folder.glob("counterpoise-*")]

    def assert_nothing_is_left(self, but=()):
        deadline, bell = time.monotonic() + ENDS_WITHIN_S, threading.Event()
        while left := self.left(but):
            assert time.monotonic() < deadline, left
            bell.wait(0.1)

    def wait_for(self, processes, but=()):
        deadline, bell = time.monotonic() + STARTS_WITHIN_S, threading.Event()
        while len(self.left(but)) < processes:
            assert time.monotonic() < deadline, self.left(but)
            bell.wait(0.1)


@pytest.mark.parametrize(("seed", "kills"), [(11, 2), pytest.param(12, 6, marks=pytest.mark.long)])
def test_killed_while_it_starts(tmp_path, seed, kills):
    moments = random.Random(seed)
    for _ in range(kills):
        trainer = Trainers(tmp_path)
        trainer.let_run(moments.uniform(0, 3))
        trainer.process.kill()
        trainer.process.communicate()
        trainer.assert_nothing_is_left()


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    started = Trainers(tmp_path_factory.mktemp("trainers"), "fork")
    assert started.process.stdout.readline() == "ready\n"
    yield started
    for pid in started.left():
        if isinstance(pid, int):
            os.kill(pid, signal.SIGKILL)
    started.process.communicate()


# ways to end that are the interpreter's own, like one that stays
ALIKE = ("an exception", "os._exit", "SIGINT")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end, marks=pytest.mark.long) if end in ALIKE else end
        for end in kill_trainer.ENDS
    ],
)
def test_whichever_way_it_ends(trainers, end):
    trainers.fork(end)
    assert trainers.status() == kill_trainer.ENDS[end][-1]
    trainers.assert_nothing_is_left(but=[trainers.process.pid])


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 8))])
def test_killed_while_its_processes_start_and_work(trainers, first):
    moments = random.Random(12 + first)
    itself = [trainers.process.pid]
    for kill in range(first, first + 5):
        pid = trainers.fork()
        if kill % 4 == 0:  # trainer, resource tracker, fork server, two workers: all are there
            trainers.wait_for(5, but=itself)
        trainers.let_run(moments.uniform(0, 2))
        os.kill(pid, signal.SIGKILL)
        assert trainers.status() == -signal.SIGKILL
        trainers.assert_nothing_is_left(but=itself)
