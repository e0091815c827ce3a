"""A worker and a balancer through many short jobs: what a job held is let go when it is over."""

import threading
import time
from pathlib import Path

import pytest

from counterpoise import Balancer
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.test_remote import SAMPLES, make, take
from tests.tools.services.test_watching import metrics_of, scrape

pytestmark = [pytest.mark.slow, pytest.mark.long]
# A job that is over is forgotten after a minute, at a balancer that may be busy.
FORGOTTEN_S = 180


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=SAMPLES, shards=2)).parent


def test_metrics_have_no_series_of_jobs_that_are_over(processes, root):
    pytest.importorskip("prometheus_client")
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0", "--metrics", "127.0.0.1:0")
    address = balancer.wait_for("listening on ").partition("listening on ")[2].partition(";")[0]
    worker = processes("worker", address, "--root", str(root), "--metrics", "127.0.0.1:0")
    served = [metrics_of(each) for each in (balancer, worker)]

    def series():
        return [[name for name in scrape(each) if "training_job" in name] for each in served]

    for number in range(3):
        take(make(balancer=Balancer(address, job=f"run-{number}")))
    assert all(series())
    until = time.monotonic() + FORGOTTEN_S
    while any(series()):
        assert time.monotonic() < until, series()
        threading.Event().wait(1.0)
