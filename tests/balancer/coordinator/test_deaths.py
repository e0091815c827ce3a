"""A sample that kills workers is given up alone, whatever is lost with them and whoever is blamed.

Workers here do their leases in order. Results wait in a socket of theirs, and may die with them;
heartbeats come now and then; a new process of the same name follows.
"""

import random
from collections import deque
from dataclasses import replace

import pytest

from counterpoise.balancer.protocol.messages import (
    RunFailed,
    StartRun,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import ELSEWHERE, IDLE, DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import (
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
    Revoke,
)
from tests.balancer.coordinator.cluster import JOB, START, Cluster

SAMPLES, DEADLY = 20, 5


class MortalWorker:
    """One process after another of a name; each ends when it works on the deadly sample."""

    def __init__(self, world, name):
        self.world, self.name, self.incarnation = world, name, -1
        self.begin()

    def begin(self):
        self.incarnation += 1
        self.peer = f"{self.name}.{self.incarnation}".encode()
        self.leases, self.unsent = deque(), deque()
        self.welcome = None
        self.world.workers[self.peer] = self
        self.world.send(self.peer, WorkerHello(self.name, self.incarnation, "host", 0))

    def hear(self, message):
        if isinstance(message, Lease):
            self.leases.append((message, deque(message.refs), []))
        elif isinstance(message, Revoke):
            self.leases = deque(each for each in self.leases if each[0].lease != message.lease)
        elif isinstance(message, Welcome) and message.number != self.welcome:
            self.welcome = message.number
            self.world.send(self.peer, WorkerReady(SAMPLES, "same", message.number))

    def act(self, rng):
        if self.unsent and rng.random() < 0.5:
            self.world.send(self.peer, self.unsent.popleft())
        elif self.leases:
            self.work(rng, *self.leases[0])
        elif self.unsent:
            self.world.send(self.peer, self.unsent.popleft())

    def work(self, rng, lease, refs, results):
        if not refs:
            self.leases.popleft()
            done = ProbeDone if lease.kind == "probe" else DecodeDone
            self.unsent.append(done(lease.lease, tuple(results)))
            return
        ref = refs.popleft()
        if rng.random() < self.world.beats:
            beat = WorkerHeartbeat(
                self.name, self.incarnation, lease=lease.lease, ordinal=ref.ordinal
            )
            self.world.send(b"heartbeat." + self.peer, beat)
        if ref.index == DEADLY:
            while self.unsent and rng.random() > self.world.loss:
                self.world.send(self.peer, self.unsent.popleft())
            del self.world.workers[self.peer]
            self.begin()
        elif lease.kind == "probe":
            results.append(Probed(ref.ordinal, str(ref.index), (1,), 1))
        else:
            results.append(DecodedItem(ref.ordinal, str(ref.index), (1,), b"", 0, 0))


class World:
    """Workers, a coordinator, and a rank that asks for all."""

    def __init__(self, seed, workers, loss, beats, on_error):
        self.rng, self.loss, self.beats = random.Random(seed), loss, beats
        self.cluster, self.workers, self.failures = Cluster(), {}, []
        self.cluster.rank(b"r", job=replace(JOB, on_error=on_error))
        for number in range(workers):
            MortalWorker(self, f"w{number}")
        places = [(rank, s, m) for s in range(5) for m in range(2) for rank in range(2)]
        self.send(b"r", StartRun(0, 0, START), *(RequestBatch(0, *place) for place in places))

    def send(self, peer, *messages):
        self.hear(self.cluster.send(peer, *messages))

    def hear(self, sent):
        for to, message in sent:
            if to in self.workers:
                self.workers[to].hear(message)
            elif isinstance(message, RunFailed):
                self.failures.append(message.reason)

    def run(self, turns):
        for _ in range(turns):
            self.rng.choice([*self.workers.values()]).act(self.rng)
            if self.rng.random() < 0.05:
                self.hear(self.cluster.tick(0.3))
        return [hole.key for hole in self.cluster.coordinator.run.last_holes]


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize(("loss", "beats"), [(1.0, 0.0), (1.0, 0.3), (0.5, 0.1)])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nobody_but_the_sample_that_kills_is_given_up(workers, loss, beats, on_error):
    for seed in range(12):
        world = World(seed, workers, loss, beats, on_error)
        assert world.run(turns=800) == [str(DEADLY)], seed
        assert all(f"sample '{DEADLY}'" in each for each in world.failures), seed
        assert bool(world.failures) == (on_error == "raise")


def test_a_worker_that_dies_while_another_job_has_its_turn_died_of_no_sample_here():
    for reports, suspected in ((ELSEWHERE, 0), (IDLE, 1)):
        cluster = Cluster()
        cluster.rank(b"r0")
        cluster.worker()
        cluster.send(b"r0", StartRun(0, 0, START))
        lease, ordinal = reports
        cluster.send(b"beat", WorkerHeartbeat("w", 0, lease=lease, ordinal=ordinal))
        granted = [s for each in cluster.coordinator.run.leases for s in each.samples.values()]
        assert granted
        cluster.send(b"next", WorkerHello("w", 1, "host", 0))
        assert sum(sample.crash_count for sample in granted) == suspected
