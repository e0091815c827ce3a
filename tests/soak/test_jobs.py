"""What a balancer, a worker and a trainer hold after many jobs, and what one costs: `make soak`."""

import itertools
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.loader import RemoteDataset
from counterpoise.tools.demo.data import ensure_demo_data
from tests.soak.growth import Held, cpu_of, held, held_by, soak
from tests.tools.services.commands import LIMIT_S
from tests.tools.services.conftest import processes as processes
from tests.tools.services.test_watching import metrics_of, scrape

pytest.importorskip("prometheus_client")
pytestmark = [pytest.mark.long, pytest.mark.slow]
# As many as a minute allows.
JOBS = 100
# A command where jobs that are over are forgotten soon, not after a minute.
SOON = (
    "import sys\n"
    "from counterpoise.balancer.job import jobs as played\n"
    "from counterpoise.workers.daemon import jobs as served\n"
    "played.FORGOTTEN_S = served.ABSENT_S = 0.5\n"
    "served.ASK_S = 0.1\n"
    "from counterpoise.tools.cli import main\n"
    "main(sys.argv[1:])\n"
)


def settled(process: int, address: str) -> Held:
    """Return what a process holds once no job is left there, or after a while what it holds."""
    until, found = time.monotonic() + LIMIT_S, None
    while True:
        threading.Event().wait(0.2)
        now = held_by(process, frozenset(scrape(address)))
        is_left = any("training_job" in name for name in now.series)
        if (now == found and not is_left) or time.monotonic() > until:
            return now
        found = now


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=24, shards=1)).parent


def test_jobs_that_come_and_go_leave_nothing(processes: Any, root: Path) -> None:
    def start(*words: str) -> Any:
        return processes(command=[sys.executable, "-c", SOON, *words, "--metrics", "127.0.0.1:0"])

    balancer = start("balancer", "--listen", "tcp://127.0.0.1:0")
    address = balancer.wait_for("listening on ").partition("listening on ")[2].partition(";")[0]
    worker = start(
        "worker", address, "--root", str(root), "--allow", "remote_transforms:Measured",
        "--cache", str(root),
    )  # fmt: skip
    worker.wait_for("working for")
    job = itertools.count()

    def turn() -> int:
        loader: Any = cp.DataLoader(
            RemoteDataset("*.tar", transform="remote_transforms:Measured"),
            balance=cp.Balance("isf", budgets={"tokens": 3000}, samples_per_step=4),
            collate_fn=list, shuffle=True, timeout=LIMIT_S,
            balancer=cp.Balancer(address, job=f"run-{next(job)}"),
        )  # fmt: skip
        steps = sum(1 for _ in loader)
        loader.close()
        return steps

    started = {"balancer": balancer, "worker": worker}
    addresses = {name: metrics_of(each) for name, each in started.items()}
    numbers = {name: each.process.pid for name, each in started.items()}
    looks = {n: partial(settled, numbers[n], addresses[n]) for n in started}
    clocks = {n: partial(cpu_of, numbers[n]) for n in started}
    soak(
        turn,
        {**looks, "trainer": lambda: held(root)},
        turns=JOBS,
        warm=5,
        clocks={**clocks, "trainer": time.thread_time},
    )
