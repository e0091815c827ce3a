"""Ranks pull decoded samples from workers that are processes of their own, over tcp."""

import logging
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from counterpoise.balancer.job.messages import JoinPool
from counterpoise.balancer.protocol.status_messages import GetStatus, StatusReport
from counterpoise.balancer.transport.asking import observe
from counterpoise.balancer.transport.naming import peer_name
from counterpoise.loader import Balancer
from counterpoise.loader.remote.puller import PiecePuller
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.workers.daemon.job_worker import WorkerSetup, open_remote_worker
from counterpoise.workers.daemon.jobs import JobsWorker, ServedBalancer
from counterpoise.workers.serving.frame_store import FrameStore
from counterpoise.workers.serving.server import PullServer
from counterpoise.workers.sources.registry import open_source
from tests.loader import balanced_data
from tests.tools.services.commands import LIMIT_S
from tests.tools.services.test_remote import SAMPLES, make, start_worker, take

pytestmark = pytest.mark.slow
NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return Path(ensure_demo_data(tmp_path_factory.mktemp("root"), samples=SAMPLES, shards=2)).parent


def start_balancer(processes, *words):
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0", *words)
    return balancer.wait_for("listening on ").partition("listening on ")[2].partition(";")[0]


@pytest.fixture(scope="module")
def address(processes, root):
    """The address of a balancer with two workers."""
    found = start_balancer(processes)
    for _ in range(2):
        start_worker(processes, found, root)
    return found


@pytest.fixture(scope="module")
def inline(processes, root):
    """What is delivered where everything goes through the balancer."""
    address = start_balancer(processes)
    worker = start_worker(processes, address, root, "--serve", "none")
    taken = take(make(balancer=address))
    worker.wait_for("--serve none was given")
    return taken


@pytest.fixture
def pulled(monkeypatch):
    """Counts the frames that were pulled."""
    counts: Counter[str] = Counter()
    take = PiecePuller._take

    def counting(self, worker, pull, frames):
        counts["pulled"] += len(frames)
        take(self, worker, pull, frames)

    monkeypatch.setattr(PiecePuller, "_take", counting)
    return counts


def transports(address):
    with observe(address, None) as observer:
        status = observer.ask(GetStatus(), StatusReport, LIMIT_S)
    return [worker.transport for worker in status.worker_statuses]


def ways(address):
    return {transport.partition(":")[0] for transport in transports(address)}


def test_what_is_pulled_is_what_comes_inline(address, inline, pulled):
    assert take(make(balancer=address)) == inline
    assert pulled["pulled"] >= SAMPLES
    assert ways(address) == {"direct"}


def test_two_ranks_pull_their_own(address, inline, pulled):
    ranks = [make(balancer=address, ranks=(r, 2)) for r in (0, 1)]
    found = []
    for pair in zip(*[loader.steps() for loader in ranks], strict=True):
        for step in pair:
            for batch, info in zip(step.microbatches, step.infos, strict=True):
                found.append((step.number, info.rank, info.keys, balanced_data.digest(batch)))
    for loader in ranks:
        loader.close()
    assert sorted(found) == sorted(inline)
    assert pulled["pulled"] >= SAMPLES


def test_a_worker_that_is_killed_takes_nothing_away(processes, address, root, inline, pulled):
    doomed = start_worker(processes, address, root)

    def after_step(step):
        if step == 0:
            assert doomed.end(signal.SIGKILL) == -signal.SIGKILL

    assert take(make(balancer=address), after_step) == inline
    assert pulled["pulled"]


class OutOfReach:
    """A worker in this process that tells ranks an address where nobody listens."""

    def __init__(self, address, root):
        self.root = root
        self.server = PullServer("tcp://127.0.0.1:*", None, FrameStore())
        self.stopped = threading.Event()
        worker = JobsWorker([ServedBalancer(address)], self.open, 1 << 30)
        self.thread = threading.Thread(target=worker.work, args=(self.stopped.is_set,))

    @contextmanager
    def open(self, _, endpoint, job):
        hello = JoinPool("out of reach", 9, "direct: " + NOBODY, NOBODY, b"", 0)
        name = peer_name(job, "out-of-reach")
        setup = WorkerSetup(name, hello, lambda job: open_source(job, self.root), self.server)
        with open_remote_worker(endpoint, setup) as worker:
            yield worker

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        self.server.close()


def test_a_worker_out_of_reach_sends_through_the_balancer(processes, root, inline, pulled, caplog):
    caplog.set_level(logging.WARNING)
    address = start_balancer(processes)
    with OutOfReach(address, root):
        assert take(make(balancer=address)) == inline
        (transport,) = transports(address)
        assert "cannot pull: tcp://127.0.0.1:1: no process listens there" in transport
    assert not pulled
    told = [each for each in caplog.messages if "it cannot pull them" in each]
    assert len(told) == 1


def test_with_keys_everything_that_is_pulled_is_encrypted_whatever_thread_decodes_it(
    processes, root, inline, pulled, tmp_path
):
    folder = tmp_path / "keys"
    assert processes("keygen", str(folder)).process.wait(LIMIT_S) == 0
    address = start_balancer(processes, "--keys", str(folder / "balancer"))
    start_worker(processes, address, root, "--keys", str(folder / "worker"), "--threads", "3")
    trainer = str(folder / "trainer")
    assert take(make(balancer=Balancer(address, keys=trainer))) == inline
    assert pulled["pulled"] >= SAMPLES
