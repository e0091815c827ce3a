"""Workers that were started with their source: ready before the balancer has asked them."""

from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.balancer.protocol.messages import (
    Ready,
    StartRun,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
)
from counterpoise.balancer.protocol.parts import UNASKED
from tests.balancer.coordinator.cluster import JOB, PLAN, START, Cluster, kinds

LOCAL = JobSpec(plan=PLAN)


def test_a_worker_that_was_started_with_its_source_is_ready_without_being_asked():
    cluster = Cluster(LOCAL)
    cluster.rank(b"r", job=LOCAL)
    sent = cluster.send(b"w", WorkerHello("w", 0, "host", 0), WorkerReady(20, "same", UNASKED))
    assert (b"r", Ready(20, "same")) in sent
    assert kinds(cluster.send(b"r", StartRun(0, 0, START)), b"w") == ["Lease"]
    # The Welcome crosses it, and is answered as well.
    assert cluster.send(b"w", WorkerReady(20, "same", 0)) == []


def test_a_worker_of_a_job_that_is_sent_is_not_ready_before_it_has_answered():
    cluster = Cluster(JOB)
    cluster.rank(b"r")
    sent = cluster.send(b"w", WorkerHello("w", 0, "host", 0), WorkerReady(20, "same", UNASKED))
    assert kinds(sent, b"w") == ["Welcome"]
    assert not cluster.coordinator.state.is_ready


def test_other_data_are_refused_only_in_the_answer_to_the_welcome():
    """What the trainer says of the workers before may be read in between."""
    cluster = Cluster(LOCAL)
    cluster.rank(b"r", job=LOCAL)
    cluster.worker(count=20)
    sent = cluster.send(b"v", WorkerHello("v", 0, "host", 0), WorkerReady(8, "other", UNASKED))
    assert kinds(sent, b"v") == ["Welcome"]
    cluster.send(b"r", WorkersEnded(("w",)))
    assert (b"r", Ready(8, "other")) in cluster.send(b"v", WorkerReady(8, "other", 0))
    cluster.send(b"x", WorkerHello("x", 0, "host", 0), WorkerReady(20, "same", UNASKED))
    assert kinds(cluster.send(b"x", WorkerReady(20, "same", 0)), b"x") == ["PeerRejected"]
