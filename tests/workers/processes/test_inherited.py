"""A supervisor that was forked from the trainer keeps nothing of it open but files."""

import contextlib
import os
import signal
import socket
import stat
from pathlib import Path

from counterpoise.workers.processes.pool import PoolJob, start_pool
from tests.workers.processes import pool_jobs
from tests.workers.processes.test_pool import next_reports, until


def kinds(pid):
    """Return the kinds of what a process has open, standard descriptors apart."""
    opened = {}
    for link in Path("/proc", str(pid), "fd").iterdir():
        # The process runs on: a file that was listed may have been closed since.
        with contextlib.suppress(FileNotFoundError):
            opened[int(link.name)] = stat.S_IFMT(link.stat().st_mode)
    return {number: kind for number, kind in opened.items() if number > 2}


def test_the_supervisor_holds_no_socket_pipe_or_device_of_the_trainer(tmp_path):
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    event, device = os.eventfd(0), os.open("/dev/zero", os.O_RDONLY)
    path = tmp_path / "samples"
    path.write_text("samples")
    inherited = {ours.fileno(), theirs.fileno(), reading, writing, event, device}
    with path.open() as file, start_pool(PoolJob(pool_jobs.wait, None, 1), "fork") as pool:
        opened = kinds(pool.supervisor_pid)
        (worker,) = next_reports(pool, "started")
        assert opened[file.fileno()] == stat.S_IFREG
        # Their numbers are taken, by a folder that was opened for nothing.
        assert {opened[number] for number in inherited} == {stat.S_IFDIR}
        # Its own: lifeline, the trainer's pidfd, the reports, the two ends of its wake-up pipe.
        own = [kind for kind in opened.values() if kind not in (stat.S_IFREG, stat.S_IFDIR)]
        assert len(own) == 5
        # A worker has them all, as torch's have.
        assert inherited < kinds(worker.pid).keys()
    for descriptor in (reading, writing, event, device):
        os.close(descriptor)
    ours.close()
    theirs.close()


def test_a_worker_that_is_started_again_reads_open_files_and_cannot_reach_others(tmp_path):
    reading, writing = os.pipe()
    path = tmp_path / "samples"
    path.write_text("samples")
    with path.open() as file:
        job = PoolJob(pool_jobs.use_inherited, (tmp_path, file, writing), 1, restart=1)
        with start_pool(job, "fork") as pool:
            until((tmp_path / "0.0").exists, "the worker did not start")
            os.kill(next_reports(pool, "started")[0].pid, signal.SIGKILL)
            until((tmp_path / "0.1").exists, "the worker did not start again")
    assert (tmp_path / "0.0").read_text() == "samples, 1 written"
    assert (tmp_path / "0.1").read_text() == "samples, Bad file descriptor"
    os.close(reading)
    os.close(writing)
