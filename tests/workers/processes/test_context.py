"""Processes of the clean context are as multiprocessing's, and end with their trainer."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from counterpoise.workers.processes.context import clean_context
from tests.trainers import Trainer
from tests.workers.processes import context_jobs

LIMIT_S = 60.0


def run(target, *args):
    process = clean_context().Process(target=target, args=args, daemon=True)
    process.start()
    return process


def test_a_process_reports_its_pid_and_its_exit_code():
    process = run(context_jobs.leave, 7)
    assert process.pid != os.getpid()
    process.join(LIMIT_S)
    assert (process.exitcode, process.is_alive()) == (7, False)
    assert process not in multiprocessing.active_children()


def test_a_process_lives_until_it_is_terminated():
    process = run(signal.pause)
    assert process.is_alive()
    assert process.exitcode is None
    process.join(0.01)
    assert process.is_alive()
    process.terminate()
    assert multiprocessing.connection.wait([process.sentinel], LIMIT_S)
    assert process.exitcode == -signal.SIGTERM
    process.close()


def test_queues_events_locks_and_shared_tensors_work_as_under_spawn():
    context = clean_context()
    questions, answers = context.Queue(), context.Queue()
    ended, lock, board = context.Event(), context.Lock(), torch.zeros(2).share_memory_()
    process = run(context_jobs.answer, questions, answers, ended, lock, board)
    with lock:
        questions.put(torch.arange(3))
        assert not ended.wait(0.01)
    assert torch.equal(answers.get(timeout=LIMIT_S), torch.tensor([0, 2, 4]))
    assert ended.wait(LIMIT_S)
    questions.put("end")
    process.join(LIMIT_S)
    assert board.tolist() == [0.0, 7.0]
    assert process.exitcode == 0


def test_an_error_is_exit_code_1():
    process = run(context_jobs.fail)
    process.join(LIMIT_S)
    assert process.exitcode == 1


def test_a_process_is_clean_and_knows_its_parent():
    answers = clean_context().Queue()
    os.environ["COUNTERPOISE_TEST_WORD"] = "autumn"
    context_jobs.STATE = "set at run time"
    process = run(context_jobs.describe, answers)
    found = answers.get(timeout=LIMIT_S)
    process.join(LIMIT_S)
    assert found == {
        "state": "as imported", "word": "autumn", "parent": os.getpid(), "daemon": True,
        "folder": str(Path.cwd()), "authkey": bytes(multiprocessing.current_process().authkey),
    }  # fmt: skip


def test_what_cannot_be_pickled_raises_and_leaves_nothing():
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for cannot in (lambda: None, threading.Lock()):
        with pytest.raises((AttributeError, TypeError)):
            run(print, cannot)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_torchs_loader_runs_on_it():
    data = TensorDataset(torch.arange(40.0).view(20, 2))
    loader = DataLoader(data, 3, num_workers=2, multiprocessing_context=clean_context())
    batches = [batch for (batch,) in loader]
    assert torch.equal(torch.cat(batches), data.tensors[0])


TRAINER = """
import signal
from counterpoise.workers.processes.context import clean_context
from tests.workers.processes import context_jobs

if __name__ == "__main__":
    context = clean_context()
    event, queue = context.Event(), context.Queue()
    for job in (context_jobs.ignore_signals, signal.pause):
        context.Process(target=job, args=(queue,) if job is not signal.pause else ()).start()
    queue.get()
    print("ready", flush=True)
    signal.pause()
"""


def test_a_killed_trainer_leaves_no_process_and_no_semaphore(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, TRAINER)
    assert trainer.process.stdout is not None
    assert trainer.process.stdout.readline() == "ready\n"
    mapped = Path(f"/proc/{trainer.process.pid}/maps").read_text().split()
    semaphores = {Path(word) for word in mapped if word.startswith("/dev/shm/sem.")}
    assert semaphores
    trainer.kill()
    trainer.assert_nothing_is_left()
    assert not any(path.exists() for path in semaphores)


def test_a_process_ends_with_a_killed_fork_server():
    process = run(signal.pause)
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    process.join(LIMIT_S)
    assert process.exitcode == 255
