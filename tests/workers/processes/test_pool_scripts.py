"""Trainers as users write them: scripts, killed at any moment, without a guard, forked."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.trainers import ENDS_WITHIN_S, Trainer, run_trainer

pytestmark = pytest.mark.slow

HEAD = """
import os, signal, sys
from pathlib import Path
from counterpoise.workers.processes.pool import PoolJob, start_pool
"""
FAITHFUL = (
    HEAD
    + """
def work(payload, slot):
    if slot.index == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()

if __name__ == "__main__":
    while True:
        with start_pool(PoolJob(work, None, 3)), start_pool(PoolJob(work, 1, 1), "fork"):
            print("ready", flush=True)
            signal.pause()
"""
)


def test_a_trainer_killed_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    moments = random.Random(7)
    # before and during the imports, around the pools' start, and after it
    for after_s in [moments.uniform(0, 1) for _ in range(2)]:
        trainer = Trainer(tmp_path, FAITHFUL)
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.process.wait(after_s)
        trainer.kill()
        trainer.assert_nothing_is_left()
    for after_s in [0, moments.uniform(0, 0.05)]:
        trainer = Trainer(tmp_path, FAITHFUL)
        assert trainer.process.stdout is not None
        assert trainer.process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            trainer.process.wait(after_s)
        trainer.kill()
        trainer.assert_nothing_is_left()


def test_a_trainer_that_just_ends_leaves_nothing(tmp_path: Path) -> None:
    text = FAITHFUL.replace('signal.pause()\n"', "").replace(
        'print("ready", flush=True)\n            signal.pause()', "sys.exit(4)"
    )
    assert run_trainer(tmp_path, text)[0] == 4


def test_a_forked_copy_neither_keeps_nor_ends_the_trainers_pool(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
def work(payload, slot):
    signal.pause()

if __name__ == "__main__":
    pool = start_pool(PoolJob(work, None, 2))
    if (child := os.fork()) == 0:
        pool.close()
        with start_pool(PoolJob(work, None, 1)) as own:
            os._exit(0 if own.supervisor_pid != pool.supervisor_pid else 1)
    status = os.waitpid(child, 0)[1]
    events = [report.event for report in pool.poll_reports()]
    print(status, "exited" in events or "failed" in events)
"""
    )
    assert run_trainer(tmp_path, text)[1] == "0 False\n"


def test_a_forked_copy_that_lives_on_does_not_keep_the_pool(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
def work(payload, slot):
    signal.pause()

if __name__ == "__main__":
    pool = start_pool(PoolJob(work, None, 2))
    if os.fork() == 0:
        os.environ.clear()
        sys.stdin.read()
        os._exit(0)
    print(pool.supervisor_pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    trainer = Trainer(tmp_path, text)
    assert trainer.process.stdout is not None
    supervisor = int(trainer.process.stdout.readline())
    trainer.process.wait(60)
    deadline, bell = time.monotonic() + ENDS_WITHIN_S, threading.Event()
    while Path("/proc", str(supervisor)).exists():
        assert time.monotonic() < deadline, "the pool outlived its trainer"
        bell.wait(0.02)
    assert trainer.leftovers() == []
    for pid in trainer.survivors():
        os.kill(pid, 9)
    trainer.process.communicate()


def test_classes_of_the_script_itself_reach_the_workers(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
class Outer:
    class Inner:
        def __init__(self, path):
            self.path = path

def work(payload, slot):
    assert type(payload) is Outer.Inner
    Path(payload.path).write_text(f"{__name__} {Path(sys.argv[0]).name}")

if __name__ == "__main__":
    with start_pool(PoolJob(work, Outer.Inner(sys.argv[0] + ".out"), 1)) as pool:
        while not any(report.event == "exited" for report in pool.poll_reports()):
            pass
"""
    )
    assert run_trainer(tmp_path, text)[0] == 0
    assert (tmp_path / "trainer.py.out").read_text() == "__mp_main__ trainer.py"


def test_a_script_without_a_guard_is_told_to_add_one(tmp_path: Path) -> None:
    text = HEAD + "\ndef work(payload, slot): signal.pause()\nstart_pool(PoolJob(work, None, 1))\n"
    code, _, err = run_trainer(tmp_path, text)
    assert code == 1
    assert "if __name__ == '__main__':" in err.splitlines()[-1]


def test_a_script_from_standard_input_can_use_modules(tmp_path: Path) -> None:
    (tmp_path / "importable_jobs.py").write_text(HEAD + "\ndef work(payload, slot): pass\n")
    text = "from importable_jobs import *\nstart_pool(PoolJob(work, 3, 1)).close()\nprint('end')"
    ended = subprocess.run(
        [sys.executable, "-"], input=text, text=True, cwd=tmp_path, capture_output=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("end\n", "")


def test_what_only_the_trainer_has_is_named(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
if __name__ == "__main__":
    def work(payload, slot): pass
    start_pool(PoolJob(work, None, 1))
"""
    )
    code, _, err = run_trainer(tmp_path, text)
    assert code == 1
    assert "attribute 'work'" in err.splitlines()[-1]
    assert "multiprocessing_context='fork'" in err.splitlines()[-1]


def test_the_start_method_of_multiprocessing_stays_open(tmp_path: Path) -> None:
    text = (
        HEAD
        + """
import multiprocessing
def work(payload, slot): signal.pause()
if __name__ == "__main__":
    start_pool(PoolJob(work, None, 1)).close()
    multiprocessing.set_start_method("spawn")
"""
    )
    assert run_trainer(tmp_path, text)[0] == 0
