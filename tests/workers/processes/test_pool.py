"""A pool's processes do what the job says, and end with the pool."""

import gc
import os
import select
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoise.workers.processes.pool import PoolJob, start_pool
from tests.workers.processes import pool_jobs

LIMIT_S = 30.0


def until(condition, what):
    """Wait for a condition; the test fails if it does not come true."""
    deadline, bell = time.monotonic() + LIMIT_S, threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        bell.wait(0.01)
    return value


def next_reports(pool, event, count=1):
    """The next reports of one kind."""
    found = []
    while True:
        found += [report for report in pool.poll_reports() if report.event == event]
        if len(found) >= count:
            return found
        assert select.select([pool], [], [], LIMIT_S)[0], f"no {event} report"


def pids_of(pool, started):
    return [report.pid for report in started] + [pool.supervisor_pid]


def gone(pids):
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


@pytest.fixture(params=["forkserver", "fork"])
def method(request):
    return request.param


def test_closing_leaves_no_process(method):
    with start_pool(PoolJob(pool_jobs.wait, None, 2), method) as pool:
        pids = pids_of(pool, next_reports(pool, "started", 2))
        assert not gone(pids)
    until(lambda: gone(pids), "processes are left")
    pool.close()
    assert pool.poll_reports() == []


def test_a_started_pool_has_reported_its_workers(method):
    with start_pool(PoolJob(pool_jobs.wait, None, 1), method) as pool:
        assert [r.worker for r in next_reports(pool, "started")] == [0]


def test_a_pool_outlives_the_thread_that_started_it(method):
    pools = []
    start = lambda: pools.append(start_pool(PoolJob(pool_jobs.wait, None, 2), method))  # noqa: E731
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with pools[0] as pool:
        next_reports(pool, "started", 2)
        os.kill(pool.pids[0], signal.SIGUSR1)
        next_reports(pool, "exited")
        assert not gone([pool.supervisor_pid])
        assert len(pool.pids) == 1


def test_a_dropped_pool_ends(method):
    pool = start_pool(PoolJob(pool_jobs.wait, None, 2), method)
    pids = [report.pid for report in next_reports(pool, "started", 2)]
    del pool
    gc.collect()
    until(lambda: gone(pids), "processes are left")


def test_a_killed_worker_is_reported_and_started_again(method):
    with start_pool(PoolJob(pool_jobs.wait, None, 2, restart=1), method) as pool:
        victim = next_reports(pool, "started", 2)[1]
        os.kill(victim.pid, signal.SIGKILL)
        (again,) = next_reports(pool, "started")
        assert (again.worker, again.incarnation) == (1, 1)
        os.kill(again.pid, signal.SIGTERM)
        (end,) = next_reports(pool, "exited")
        assert (end.worker, end.incarnation, end.signal, end.restarted) == (1, 1, 15, False)


def test_a_worker_that_exits_reports_its_status(method):
    with start_pool(PoolJob(pool_jobs.die_once, None, 2, restart=4), method) as pool:
        (end,) = next_reports(pool, "exited")
        assert (end.worker, end.code, end.signal, end.restarted) == (1, 3, None, True)


def test_an_error_in_a_worker_is_reported_in_one_line(method):
    with start_pool(PoolJob(pool_jobs.raise_error, None, 1), method) as pool:
        (failure,) = next_reports(pool, "failed")
        assert (failure.worker, failure.message) == (0, "worker 0 raised KeyError: 'width'")


def test_a_worker_can_end_the_pool(method, tmp_path):
    os.mkfifo(tmp_path / "go")
    with start_pool(PoolJob(pool_jobs.end_the_pool, tmp_path, 2, restart=100), method) as pool:
        (tmp_path / "go").write_text("")
        reports = []
        while not any(report.event == "exited" for report in reports):
            assert select.select([pool], [], [], LIMIT_S)[0], "the pool goes on"
            reports += pool.poll_reports()
        started = [report.pid for report in reports if report.event == "started"]
        until(lambda: gone(started), "processes are left")
    (failure,) = [report for report in reports if report.event == "failed"]
    assert (failure.worker, failure.message) == (None, "worker 1: other data than the others'")
    assert len(started) == 2


def test_a_pool_that_has_said_why_it_ends_was_not_killed(method, tmp_path):
    os.mkfifo(tmp_path / "go")
    with start_pool(PoolJob(pool_jobs.end_the_pool, tmp_path, 2), method) as pool:
        (tmp_path / "go").write_text("")
        (failure,) = next_reports(pool, "failed")
        assert failure.worker is None
        poller = select.poll()
        poller.register(pool)
        until(lambda: any(what & select.POLLHUP for _, what in poller.poll(0)), "it goes on")
        assert not [report for report in pool.poll_reports() if report.event == "failed"]


def test_the_workers_end_with_a_killed_supervisor(method):
    with start_pool(PoolJob(pool_jobs.wait, None, 2), method) as pool:
        pids = [report.pid for report in next_reports(pool, "started", 2)]
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        (failure,) = next_reports(pool, "failed")
        assert "supervisor was killed" in failure.message
        until(lambda: gone(pids), "processes are left")


def test_workers_that_ignore_signals_end_too(method, tmp_path):
    with start_pool(PoolJob(pool_jobs.never_listen, tmp_path, 1), method) as pool:
        pids = pids_of(pool, next_reports(pool, "started"))
        until((tmp_path / "0.0").exists, "the worker did not start")
    until(lambda: gone(pids), "processes are left")


def test_what_a_worker_started_ends_with_it(method, tmp_path):
    with start_pool(PoolJob(pool_jobs.start_a_child, tmp_path, 1), method):
        until((tmp_path / "0.0").exists, "the worker did not start")
        child = int((tmp_path / "0.0").read_text())
        assert not gone([child])
    until(lambda: gone([child]), "the worker's child is left")


def test_workers_see_the_trainers_surroundings_of_now(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOISE_TEST_WORD", "spring")
    with start_pool(PoolJob(pool_jobs.write_environment, tmp_path, 1), method):
        until((tmp_path / "0.0").exists, "the worker did not start")
    assert (tmp_path / "0.0").read_text() == f"spring|{tmp_path}"


def test_pools_live_side_by_side_on_one_fork_server():
    def parent(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    with start_pool(PoolJob(pool_jobs.wait, None, 1)) as first:
        with start_pool(PoolJob(pool_jobs.wait, None, 1)) as second:
            assert first.supervisor_pid != second.supervisor_pid
            assert parent(first.supervisor_pid) == parent(second.supervisor_pid) != os.getpid()
        assert not gone(pids_of(first, next_reports(first, "started")))


def test_a_dead_fork_server_is_replaced():
    with start_pool(PoolJob(pool_jobs.wait, None, 1)) as pool:
        stat = Path(f"/proc/{pool.supervisor_pid}/stat").read_text()
    fork_server = int(stat.rpartition(")")[2].split()[1])
    os.kill(fork_server, signal.SIGKILL)
    os.waitpid(fork_server, os.WNOHANG)
    until(lambda: "Z" in stat_of(fork_server), "the fork server lives")
    with start_pool(PoolJob(pool_jobs.wait, None, 1)) as pool:
        assert next_reports(pool, "started")


def stat_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return "Z"


def test_arrays_and_tensors_of_the_job_are_not_copied_by_the_workers(tmp_path):
    payload = (tmp_path, np.arange(5.0), torch.arange(6).view(2, 3), [torch.empty(0)])
    with start_pool(PoolJob(pool_jobs.write_sums, payload, 2)) as pool:
        until(lambda: (tmp_path / "0.0").exists() and (tmp_path / "1.0").exists(), "no answer")
        assert [r for r in pool.poll_reports() if r.event == "failed"] == []
    assert (tmp_path / "0.0").read_text() == (tmp_path / "1.0").read_text() == "10.0 15 (2, 3) True"
    assert payload[1].sum() == 10  # what a worker writes is its own


def test_shared_tensors_stay_shared(method, tmp_path):
    board = torch.zeros(4, dtype=torch.int64).share_memory_()
    with start_pool(PoolJob(pool_jobs.sign_in, {"board": board, "tail": board[2:]}, 2), method):
        until(lambda: board.tolist() == [7, 8, 7, 8], "nobody signed in")


def test_a_forked_pool_runs_closures(tmp_path):
    word = "spring"
    job = PoolJob(lambda payload, slot: pool_jobs.write(tmp_path, slot, payload()), lambda: word, 1)
    with start_pool(job, "fork"):
        until((tmp_path / "0.0").exists, "the worker did not start")
    assert (tmp_path / "0.0").read_text() == "spring"


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match=r"<lambda>.*top level.*multiprocessing_context='fork'"):
        start_pool(PoolJob(pool_jobs.wait, lambda: 1, 1))
    with pytest.raises(TypeError, match=r"lock.*multiprocessing_context='fork'"):
        start_pool(PoolJob(pool_jobs.wait, threading.Lock(), 1))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="got 'spawn'"):
        start_pool(PoolJob(pool_jobs.wait, None, 1), "spawn")
    with pytest.raises(ValueError, match="0 or more workers"):
        PoolJob(pool_jobs.wait, None, -1)


def test_the_fork_server_has_one_thread():
    with start_pool(PoolJob(pool_jobs.wait, None, 1)) as pool:
        stat = Path(f"/proc/{pool.supervisor_pid}/stat").read_text()
        fork_server = stat.rpartition(")")[2].split()[1]
        assert len(list(Path("/proc", fork_server, "task").iterdir())) == 1
