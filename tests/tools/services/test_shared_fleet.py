"""Three jobs on one fleet of worker processes: shares by weights, and nothing seen of each other.

Workers write the name of a job into a pipe as they decode one of its samples, which all take the
same time: so the pipe has the order in which the fleet worked, and no clock is looked at.
"""

import io
import os
import tarfile
import threading
from collections import Counter, defaultdict

import pytest

from counterpoise import Balancer, Ranks
from counterpoise.loader import Balance, DataLoader, LoaderError, RemoteDataset
from tests.security.key_party import keygen
from tests.tools.services.commands import LIMIT_S

pytestmark = pytest.mark.long
JOBS = "abc"
# Of a job: more than it can have decoded before the test ends.
SAMPLES = 8000
DECODE_S = "0.01"


class Trainers:
    """A trainer for each job, which takes what comes at once; those in `resting` take nothing."""

    def __init__(self, address, keys):
        self.resting, self.keys, self.errors = set(), defaultdict(list), []
        self._changed, self._ended = threading.Condition(), False
        self._threads = [
            threading.Thread(target=self._train, args=(job, address, keys / f"trainer-{job}"))
            for job in JOBS
        ]
        for each in self._threads:
            each.start()

    def rest(self, *jobs):
        """Let these jobs rest, and no others."""
        with self._changed:
            self.resting = {*jobs}
            self._changed.notify_all()

    def end(self):
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for each in self._threads:
            each.join(LIMIT_S)
        assert not any(each.is_alive() for each in self._threads)

    def _train(self, job, address, keys):
        loader = None
        try:
            loader = make(address, keys, job)
            for batch in loader:
                self.keys[job] += [sample["name"] for sample in batch]
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or job not in self.resting)
                    if self._ended:
                        break
        except Exception as error:
            self.errors.append(error)
        if loader is not None:
            loader.close()


def make(address, keys, job):
    return DataLoader(
        RemoteDataset(f"{job}.tar", transform="remote_transforms:Counted"),
        balance=Balance("fixed", accumulate=4), batch_size=4, ranks=Ranks(virtual=1), shuffle=True,
        collate_fn=list, timeout=LIMIT_S, balancer=Balancer(address, job=job, keys=keys),
    )  # fmt: skip


class Order:
    """The jobs of the samples that the fleet has decoded, in order."""

    def __init__(self, pipe):
        self.pipe = str(pipe)
        self._descriptor = os.open(pipe, os.O_RDWR)  # also for writing: it never ends
        self._read = b""

    def next(self, count):
        """Return how many of the next so many samples are of each job."""
        while len(self._read) < count:
            self._read += os.read(self._descriptor, count - len(self._read))
        found, self._read = self._read[:count], self._read[count:]
        return Counter(found.decode())

    def close(self):
        os.close(self._descriptor)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Keys for workers of all jobs, and for a trainer and a worker of each."""
    folder = tmp_path_factory.mktemp("bound") / "keys"
    keygen(folder)
    for job in JOBS:
        keygen(folder, "--job", job)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """An archive of small samples for each job."""
    folder = tmp_path_factory.mktemp("root")
    for job in JOBS:
        with tarfile.open(folder / f"{job}.tar", "w") as archive:
            for number in range(SAMPLES):
                member = tarfile.TarInfo(f"{job}{number:05}.txt")
                member.size = 1
                archive.addfile(member, io.BytesIO(b"x"))
    return folder


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    pipe = tmp_path_factory.mktemp("order") / "pipe"
    os.mkfifo(pipe)
    made = Order(pipe)
    yield made
    made.close()


@pytest.fixture(scope="module")
def served(processes, root, keys, order):
    """The jobs at work: the balancer's address, and trainers."""
    balancer = processes(
        "balancer", "--listen", "tcp://127.0.0.1:0", "--keys", str(keys / "balancer")
    )
    line = balancer.wait_for("listening on")
    address = line.partition("listening on ")[2].partition(";")[0].strip()
    workers = [
        processes(
            "worker", address, "--root", str(root), "--keys", str(keys / "worker"),
            "--weight", "a=2", "--allow", "remote_transforms:Counted",
            DECODE_S=DECODE_S, DECODE_ORDER=order.pipe,
        )
        for _ in range(4)
    ]  # fmt: skip
    for each in workers:
        each.wait_for("answers")
    trainers = Trainers(address, keys)
    yield address, trainers
    trainers.end()


def within(shares, due):
    assert {*shares} == {*due}
    for job, count in due.items():
        assert 0.9 * count <= shares[job] <= 1.1 * count, shares


def test_hungry_jobs_share_the_fleet_by_weights_and_have_what_an_idle_one_leaves(served, order):
    _, trainers = served
    while len(order.next(100)) < len(JOBS):  # until all have come
        pass
    order.next(200)
    within(order.next(2000), {"a": 1000, "b": 500, "c": 500})
    trainers.rest("b")
    while order.next(100)["b"]:  # what it had asked for
        pass
    within(order.next(900), {"a": 600, "c": 300})
    trainers.rest()
    while not order.next(100)["b"]:
        pass
    order.next(200)
    within(order.next(1200), {"a": 600, "b": 300, "c": 300})
    assert not trainers.errors


def test_each_job_gets_its_own_samples_only(served):
    for job, found in served[1].keys.items():
        assert len(found) == len(set(found)) > 100
        assert {key[0] for key in found} == {job}


def test_a_loader_with_another_job_s_key_is_refused(served, keys):
    with pytest.raises((LoaderError, ValueError), match="job b"):
        next(iter(make(served[0], keys / "trainer-b", "a")))
