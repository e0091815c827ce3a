"""`counterpoise worker` as a process of its own (ADR 63)."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from counterpoise.balancer.job.messages import JoinPool, LeavePool
from counterpoise.loader import RemoteDataset
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.commands import LIMIT_S
from tests.workers.daemon.played import PlayedBalancer, job_of

pytestmark = pytest.mark.slow
SAMPLES = 30


def test_a_worker_serves_its_samples_and_goes_when_it_is_told(processes, tmp_path) -> None:
    root = Path(ensure_demo_data(tmp_path, samples=SAMPLES, shards=2)).parent
    job = replace(job_of(), source=RemoteDataset("*.tar").spec())
    with zmq.Context() as context:
        balancer = PlayedBalancer(context, job, {"kind": "samples", "takes_empty": False})
        worker = processes("worker", balancer.endpoint, "--root", str(root))
        batches = balancer.deliver()
        assert sum(len(samples) for pieces in batches for samples in pieces.values()) == SAMPLES
        assert balancer.of_kind(JoinPool)[0].transport.startswith("direct: ")
        worker.process.send_signal(signal.SIGTERM)
        balancer.run(lambda: bool(balancer.of_kind(LeavePool)))
        assert worker.process.wait(LIMIT_S) == 0
        balancer.close()
