"""A worker and a balancer through many short jobs: what a job held is let go when it is over."""

import threading
import time
from pathlib import Path

import pytest

from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.commands import limited
from tests.tools.services.test_direct import start_balancer
from tests.tools.services.test_remote import SAMPLES, make, take
from tests.tools.services.test_watching import metrics_of, scrape

pytestmark = [pytest.mark.slow, pytest.mark.long]
# The files that a worker may open, and what it has at most when the last job is over.
MOST_FILES, JOBS = 320, 24
# A job that is over is forgotten after a minute, at a balancer that may be busy.
FORGOTTEN_S = 180


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=SAMPLES, shards=2)).parent


def test_a_worker_with_few_files_serves_more_jobs_than_it_could_at_a_time(processes, root):
    address = start_balancer(processes)
    words = "worker", address, "--root", str(root)
    worker = processes(command=limited(MOST_FILES, *words))
    worker.wait_for("working for")
    files = Path(f"/proc/{worker.process.pid}/fd")
    most = 0
    for number in range(JOBS):
        given = take(make(balancer=address, job=f"sweep-{number}"))
        assert sum(len(names) for *_, names, _ in given) == SAMPLES
        most = max(most, len([*files.iterdir()]))
    assert most < MOST_FILES * 3 / 4
    assert worker.end() == 0


def test_jobs_that_a_worker_has_no_files_for_wait_and_it_says_so(processes, root):
    address = start_balancer(processes)
    worker = processes(command=limited(60, "worker", address, "--root", str(root)))
    first, second = (make(balancer=address, job=name) for name in ("first", "second"))
    held = iter(first)
    next(held)
    given = []
    other = threading.Thread(target=lambda: given.extend(take(second)))
    other.start()
    line = worker.wait_for("job second waits")
    assert "raise the limit (ulimit -n), or start other workers" in line
    assert not given
    for _ in held:
        pass
    first.close()
    other.join(120)
    assert sum(len(names) for *_, names, _ in given) == SAMPLES
    assert worker.end() == 0


def test_metrics_have_no_series_of_jobs_that_are_over(processes, root):
    pytest.importorskip("prometheus_client")
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0")
    address = balancer.wait_for("listening on ").partition("listening on ")[2].partition(";")[0]
    worker = processes("worker", address, "--root", str(root), "--metrics", "127.0.0.1:0")
    served = [metrics_of(each) for each in (balancer, worker)]

    def series():
        return [[name for name in scrape(each) if "training_job" in name] for each in served]

    for number in range(3):
        take(make(balancer=address, job=f"run-{number}"))
    assert all(series())
    until = time.monotonic() + FORGOTTEN_S
    while any(series()):
        assert time.monotonic() < until, series()
        threading.Event().wait(1.0)
