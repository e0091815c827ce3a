"""Trainers as users write them: scripts, killed at any moment, forked."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.trainers import Trainer, run_trainer

pytestmark = pytest.mark.slow

HEAD = """
import multiprocessing, os, signal, sys
from counterpoise.workers.processes.pool import Pool

def work(payload, slot):
    if slot.index == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
"""
FAITHFUL = (
    HEAD
    + """
if __name__ == "__main__":
    for method in ("fork", "forkserver"):
        Pool(work, None, 2, multiprocessing.get_context(method), restarts=1).close()
    pools = [Pool(work, 1, 2, multiprocessing.get_context("forkserver"), restarts=1),
             Pool(work, 1, 2, multiprocessing.get_context("fork"), restarts=1)]
    print("ready", flush=True)
    signal.pause()
"""
)


def sockets_of(trainer: Trainer) -> list[Path]:
    """Folders of multiprocessing's fork servers in a trainer's temporary folder."""
    return list(trainer.temporary.glob("pymp-*"))


def test_a_trainer_killed_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    moments = random.Random(7)
    # before and during the imports, around the pools' start, and after it
    for after_s in [moments.uniform(0, 3) for _ in range(2)]:
        trainer = Trainer(tmp_path, FAITHFUL)
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.process.wait(after_s)
        trainer.kill()
        # A fork server sees the end when it has imported torch, which a cold disk makes long.
        trainer.assert_nothing_is_left(within_s=60.0)
        assert sockets_of(trainer) == []
    trainer = Trainer(tmp_path, FAITHFUL)
    assert trainer.process.stdout is not None
    assert trainer.process.stdout.readline() == "ready\n"
    assert sockets_of(trainer)
    trainer.kill()
    trainer.assert_nothing_is_left()
    assert sockets_of(trainer) == []


def test_a_trainer_that_just_ends_leaves_nothing(tmp_path: Path) -> None:
    text = FAITHFUL.replace("signal.pause()\n", "sys.exit(4)\n")
    text = text.replace("        sys.exit(4)\n", "        signal.pause()\n")
    assert run_trainer(tmp_path, text)[0] == 4


def test_a_forked_copy_neither_keeps_nor_ends_the_trainers_pool(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
if __name__ == "__main__":
    pool = Pool(work, None, 2, restarts=1)
    if (child := os.fork()) == 0:
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    print(status, repr(pool.failure()))
    if os.fork() == 0:
        os.environ.clear()
        sys.stdin.read()
        os._exit(0)
    print(*pool.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    trainer = Trainer(tmp_path, text)
    assert trainer.process.stdout is not None
    assert trainer.process.stdout.readline() == "0 ''\n"
    trainer.process.wait(60)
    survivors = trainer.survivors()
    assert trainer.leftovers() == []
    for pid in survivors:
        os.kill(pid, 9)
    trainer.process.communicate()


def test_a_script_without_a_guard_is_told_to_add_one(tmp_path: Path) -> None:
    text = """
from counterpoise.loader import DataLoader
print(*DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn"))
"""
    code, _, err = run_trainer(tmp_path, text)
    assert code == 1
    assert "put the script's work below `if __name__ == '__main__':`" in err
