"""Workers and ranks that are turned away: those that cannot do what others can, other versions."""

from msgspec import structs

from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    PeerRejected,
    RankHello,
    RunFailed,
    WorkerBye,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.records import VERSION
from tests.balancer.coordinator.cluster import JOB, Cluster, kinds, started

HELLO = WorkerHello("late", 0, "host", 1)
FAILED = WorkerFailed("no such file")


def failures(sent):
    return [message.reason for _, message in sent if isinstance(message, RunFailed)]


def rejections(sent, peer):
    return [m.reason for to, m in sent if to == peer and isinstance(m, PeerRejected)]


def diagnostics(cluster):
    return cluster.coordinator.diagnostics


# --- workers that cannot open the source


def test_a_late_worker_that_cannot_open_the_data_ends_no_run():
    cluster = started()
    sent = cluster.send(b"late", HELLO, FAILED)
    assert failures(sent) == []
    (reason,) = rejections(sent, b"late")
    assert reason.endswith("others can: no such file")
    assert set(cluster.coordinator.workers) == {b"w"}
    assert diagnostics(cluster).turned_away == 1
    assert "late: this worker cannot do" in diagnostics(cluster).last_refused[0]


def test_one_that_fails_first_waits_for_what_the_others_say():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.send(b"late", HELLO)
    cluster.send(b"w", WorkerHello("w", 0, "host", 0))
    assert cluster.send(b"late", FAILED) == []
    sent = cluster.send(b"w", WorkerReady(20, "same"))
    assert failures(sent) == []
    assert len(rejections(sent, b"late")) == 1


def test_the_run_fails_when_no_worker_is_left_that_could_do_it():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.send(b"late", HELLO)
    cluster.send(b"w", WorkerHello("w", 0, "host", 0))
    assert failures(cluster.send(b"late", FAILED)) == []
    sent = cluster.send(b"w", FAILED)
    assert failures(sent) == ["worker w: no such file (and so do 1 others)"]
    assert rejections(sent, b"w") == rejections(sent, b"late") == []  # the job may be wrong


def test_the_run_fails_too_when_the_last_that_could_has_left():
    for leave in (
        lambda cluster: cluster.send(b"w", WorkerBye()),
        lambda cluster: cluster.lose(b"w", WorkerBye()),
    ):
        cluster = Cluster()
        cluster.rank(b"r")
        cluster.send(b"w", WorkerHello("w", 0, "host", 0))
        cluster.send(b"late", HELLO, FAILED)
        assert failures(leave(cluster)) == ["worker late: no such file"]


# --- versions: the balancer's decides


def test_a_worker_of_another_version_is_turned_away_even_if_it_comes_first():
    cluster = Cluster(JOB)
    sent = cluster.send(b"late", structs.replace(HELLO, version="0.2.0"))
    (reason,) = rejections(sent, b"late")
    assert f"has counterpoise 0.2.0, and the balancer {VERSION}" in reason
    assert not cluster.coordinator.workers
    assert "late: this peer has counterpoise 0.2.0" in diagnostics(cluster).last_refused[0]
    assert kinds(cluster.worker(), b"w")[0] == "Welcome"


def test_so_is_a_worker_that_comes_again_with_another_version():
    cluster = Cluster()
    cluster.send(b"late", HELLO)
    sent = cluster.send(b"late", structs.replace(HELLO, version="0.2.0"))
    assert len(rejections(sent, b"late")) == 1
    assert not cluster.coordinator.workers


def test_so_is_a_trainer_of_another_version():
    cluster = Cluster()
    sent = cluster.send(b"r", RankHello((0, 1), to_json(JOB), version="0.2.0"))
    assert [f"the balancer {VERSION}" in reason for reason in rejections(sent, b"r")] == [True]
    assert cluster.coordinator.job is None
