"""A coordinator without processes: messages to it, and what it sends."""

from dataclasses import replace

from counterpoise.balancer.coordinator.delivery.sample import WorkerPayloads
from counterpoise.balancer.coordinator.delivery.tracker import DeliveryTracker
from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import LABEL_TOKENS, JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Message,
    RankHello,
    StartRun,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, EpochPosition, Probed
from counterpoise.balancer.protocol.payload_messages import DecodeDone, Lease, ProbeDone
from counterpoise.balancer.transport.wire import payload_frames

START = EpochPosition(0, 0, 0, 0, "")
PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,), "isf", "greedy")
JOB = JobSpec(source={"pattern": "x"}, plan=PLAN)
OTHER = replace(JOB, on_error="skip")


def tracker(buffer_bytes=1000, skips=False, label=True, **plan):
    """Return a delivery without steps; `skips`: it waits for holes."""
    job = JobSpec(
        plan=replace(PLAN, resources=(LABEL_TOKENS if label else "tokens",), **plan),
        on_error="skip" if skips else "raise",
        buffer_bytes=buffer_bytes,
    )
    return DeliveryTracker(0, job, WorkerPayloads())


class Cluster:
    """A coordinator and what it sends, by peer."""

    def __init__(self, job=None):
        self.coordinator = Coordinator(job)
        self.now = 0.0

    def send(self, peer, *messages, after_s=0.0):
        """Send messages; return (peer, message) of all that is sent."""
        self.now += after_s
        sent = [
            send
            for message in messages
            for send in self.coordinator.handle(
                peer, message, (b"",) * payload_frames(message), self.now
            )
        ]
        return [(send.peer, send.message) for send in sent]

    def tick(self, after_s=0.0):
        self.now += after_s
        return [(send.peer, send.message) for send in self.coordinator.tick(self.now)]

    def lose(self, peer, undelivered):
        sent = self.coordinator.unreachable(peer, undelivered, self.now)
        return [(send.peer, send.message) for send in sent]

    def worker(self, peer=b"w", incarnation=0, count=20):
        hello = WorkerHello(peer.decode(), incarnation, "host", 0)
        return self.send(peer, hello, WorkerReady(count, "same"))

    def probe_all(self, peer):
        """Send the costs of all samples of a worker's probe leases."""
        for held in self.coordinator.run.leases.of_worker(peer):
            found = tuple(Probed(ordinal, f"k{ordinal}", (1,), 1) for ordinal in held.samples)
            if held.kind == "probe":
                self.send(peer, ProbeDone(held.number, found))

    def rank(self, peer, ranks=(0, 1), job=JOB):
        return self.send(peer, RankHello(ranks, to_json(job)))


def kinds(sent, peer):
    return [type(message).__name__ for to, message in sent if to == peer]


def started(ranks=((0,), (1,))):
    """A cluster at work: one worker, and a process for each of `ranks`, at run 0."""
    cluster = Cluster()
    for number, played in enumerate(ranks):
        cluster.rank(b"r%d" % number, played)
    cluster.worker()
    sent = []
    for number in range(len(ranks)):
        sent += cluster.send(b"r%d" % number, StartRun(0, 0, START))
    assert any(isinstance(message, Lease) for _, message in sent)
    return cluster


def do_leases(cluster, sent, peer=b"w"):
    """Let a worker do what it is given, until it is given no more; return what that makes sent."""
    answers = []
    while leases := [message for to, message in sent if to == peer and isinstance(message, Lease)]:
        sent = []
        for lease in leases:
            for ref in lease.refs:
                key = str(ref.ordinal)
                if lease.kind == "probe":
                    done: Message = ProbeDone(lease.lease, (Probed(ref.ordinal, key, (1,), 1),))
                else:
                    done = DecodeDone(
                        lease.lease, (DecodedItem(ref.ordinal, key, (1,), b"", 0, 0),)
                    )
                sent += cluster.send(peer, done)
        answers += sent
    return answers
