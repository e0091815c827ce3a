"""A pool's processes do what they are told, and end with the pool."""

import gc
import multiprocessing
import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from counterpoise.workers.processes.pool import Pool
from tests.workers.processes import pool_jobs

LIMIT_S = 30.0


def until(condition, what):
    """Wait for a condition; the test fails if it does not come true."""
    deadline, bell = time.monotonic() + LIMIT_S, threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        bell.wait(0.01)
    return value


def failure_of(pool):
    """Wait until a pool says why it cannot go on, as a trainer does."""
    while not (reason := pool.failure()):
        assert select.select([pool], [], [], LIMIT_S)[0], "the pool goes on"
    return reason


def replaced(pool, pids):
    """Wait until one of these workers was replaced."""
    while pool.pids == pids:
        assert select.select([pool], [], [], LIMIT_S)[0], "nobody is missed"
        assert pool.failure() == ""


def gone(pids):
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


def signed(folder):
    """The workers that have signed in a folder: their slots and process ids."""
    return [tuple(map(int, path.name.split("."))) for path in sorted(folder.glob("[0-9].[0-9]*"))]


@pytest.fixture(params=["fork", "forkserver"])
def start(request):
    context, pools = multiprocessing.get_context(request.param), []

    def start(work, payload, workers, **more):
        pools.append(Pool(work, payload, workers, context=context, **more))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def test_closing_leaves_no_process(start):
    pool = start(pool_jobs.wait, None, 2, restarts=1)
    pids = pool.pids
    assert len(pids) == 2
    assert pool.failure() == ""
    pool.close()
    until(lambda: gone(pids), "processes are left")
    pool.close()


def test_a_pool_outlives_the_thread_that_started_it(start):
    pools = []
    thread = threading.Thread(target=lambda: pools.append(start(pool_jobs.wait, None, 2)))
    thread.start()
    thread.join()
    assert not select.select(pools, [], [], 0.1)[0]
    assert pools[0].failure() == ""


def test_a_dropped_pool_ends():
    pool = Pool(pool_jobs.wait, None, 2)
    pids = pool.pids
    del pool
    gc.collect()
    until(lambda: gone(pids), "processes are left")


def test_a_killed_worker_is_started_again_as_often_as_it_may(start, tmp_path):
    pool = start(pool_jobs.sign_and_wait, tmp_path, 2, restarts=1)
    until(lambda: len(signed(tmp_path)) == 2, "the workers did not start")
    first = pool.pids
    os.kill(first[1], signal.SIGKILL)
    replaced(pool, first)
    assert pool.pids[0] == first[0]
    until(lambda: (1, pool.pids[1]) in signed(tmp_path), "the worker did not start again")
    os.kill(first[0], signal.SIGKILL)
    assert failure_of(pool) == "worker 0 ended with signal 9 and is not started again"


def test_a_worker_that_is_started_again_has_the_payload_of_the_start(tmp_path):
    payload = [tmp_path]
    pool = Pool(lambda given, slot: pool_jobs.sign_and_wait(given[0], slot), payload, 1,
                multiprocessing.get_context("fork"), restarts=1)  # fmt: skip
    payload[0] = None
    until(lambda: len(signed(tmp_path)) == 1, "the worker did not start")
    first = pool.pids
    os.kill(first[0], signal.SIGKILL)
    replaced(pool, first)
    until(lambda: len(signed(tmp_path)) == 2, "the worker did not start again")
    pids = pool.pids
    pool.close()
    until(lambda: gone([*first, *pids]), "processes are left")


def test_one_that_ends_well_is_not_started_again(start):
    pool = start(pool_jobs.end_well, None, 1, restarts=5)
    assert failure_of(pool) == "worker 0 ended with status 0 and is not started again"
    assert pool._processes[0].exitcode == 0


def test_an_error_in_a_worker_is_told_in_one_line(start):
    reason = failure_of(start(pool_jobs.raise_error, None, 1))
    assert reason == (
        "worker 0 ended with status 1 and is not started again: worker 0 raised KeyError: 'width'"
    )


def test_a_worker_can_end_the_pool(start):
    pool = start(pool_jobs.end_the_pool, None, 2, restarts=100)
    assert failure_of(pool) == "worker 1: other data than the others'"
    assert pool.failure() == "worker 1: other data than the others'"


def test_workers_that_ignore_signals_end_too(start, tmp_path):
    pool = start(pool_jobs.never_listen, tmp_path, 1)
    until(lambda: signed(tmp_path), "the worker did not start")
    pids = pool.pids
    pool.close()
    until(lambda: gone(pids), "processes are left")


def test_shared_tensors_stay_shared(start):
    board = torch.zeros(2, dtype=torch.int64).share_memory_()
    start(_sign_in, board, 2)
    until(lambda: board.tolist() == [7, 8], "nobody signed in")


def _sign_in(board, slot):
    board[slot.index] = 7 + slot.index


def test_what_cannot_be_pickled_is_named():
    clean = multiprocessing.get_context("forkserver")
    with pytest.raises(TypeError, match=r"<lambda>.*top level.*multiprocessing_context='fork'"):
        Pool(pool_jobs.wait, lambda: 1, 1, clean)
    with pytest.raises(TypeError, match=r"lock.*multiprocessing_context='fork'"):
        Pool(pool_jobs.wait, threading.Lock(), 1, clean)
