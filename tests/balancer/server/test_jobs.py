"""The jobs of one balancer: who is heard by whom, how long a job stays, and what the log says."""

import logging
import sys
from types import SimpleNamespace

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.rank_handlers import LATE_S
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    Bye,
    JobList,
    ListJobs,
    PeerRejected,
    Ping,
    Pong,
    RankBye,
    RankHello,
    StartRun,
    UnknownPeer,
    WorkerBye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.payload_messages import RequestBatch
from counterpoise.balancer.server import jobs as module
from counterpoise.balancer.server.jobs import FORGOTTEN_S, JobRouter
from counterpoise.balancer.transport.naming import (
    DEFAULT_JOB,
    checked_job,
    default_job,
    job_of,
    peer_name,
)
from tests.balancer.coordinator.cluster import JOB, START


def hello(name="process 0 (host h, pid 1)"):
    return RankHello((0, 1), to_json(JOB), name=name)


def kinds(sent):
    return [(send.peer, type(send.message).__name__) for send in sent]


@pytest.fixture
def jobs():
    return JobRouter(Coordinator)


def test_each_job_has_its_workers_and_its_ranks(jobs):
    for job in ("a", "b"):
        jobs.handle(f"{job}|r".encode(), hello())
    sent = jobs.handle(b"a|w", WorkerHello("w", 0, "host", 0))
    assert kinds(sent) == [(b"a|w", "Welcome")]
    sent = jobs.handle(b"a|w", WorkerReady(20, "print", 0))
    assert kinds(sent) == [(b"a|r", "Ready")]
    a, b = (jobs._jobs[job].coordinator for job in ("a", "b"))
    assert (len(a.workers), len(b.workers)) == (1, 0)
    assert jobs.state_of(b"a|w") == "worker ready"
    assert jobs.state_of(b"b|w") == "absent"


def test_workers_are_told_which_jobs_there_are(jobs):
    assert jobs.handle(b"|fleet", ListJobs())[0].message == JobList(())
    for job in ("b", "a"):
        jobs.handle(f"{job}|r".encode(), hello())
    assert jobs.handle(b"|fleet", ListJobs())[0].message == JobList(("a", "b"))
    assert jobs.handle(b"a|fleet", ListJobs())[0].message == JobList(("a",))


def test_a_job_stays_for_restarts_and_is_then_forgotten(jobs):
    jobs.handle(b"a|r", hello(), now=1.0)
    jobs.tick(2.0)
    jobs.handle(b"a|r", RankBye(), now=3.0)
    jobs.tick(FORGOTTEN_S)
    assert [*jobs.coordinators()] == ["a"]
    jobs.tick(3.0 + FORGOTTEN_S)
    assert not jobs.coordinators()


def test_workers_are_told_of_no_job_that_nobody_trains_and_of_its_restart(jobs):
    jobs.handle(b"a|r", hello(), now=1.0)
    jobs.handle(b"a|w", WorkerHello("w", 0, "host", 0), now=1.0)
    jobs.handle(b"a|w", WorkerReady(20, "print", 0), now=1.0)
    jobs.handle(b"a|r", RankBye(), now=3.0)
    assert jobs.names() == ()
    jobs.handle(b"a|w", WorkerBye(), now=4.0)
    jobs.tick(5.0)
    jobs.handle(b"a|s", hello(), now=6.0)
    assert jobs.names() == ("a",)
    jobs.handle(b"a|v", WorkerHello("w", 1, "host", 0), now=7.0)
    assert kinds(jobs.handle(b"a|v", WorkerReady(20, "print", 0), now=7.0)) == [(b"a|s", "Ready")]


def test_the_job_that_is_over_for_longest_makes_room(jobs, monkeypatch):
    monkeypatch.setattr(module, "MAX_JOBS", 3)
    for now, job in enumerate("abc"):
        jobs.handle(f"{job}|r".encode(), hello(), now=float(now))
    for now, job in enumerate("cb"):
        jobs.tick(10.0 + now)
        jobs.handle(f"{job}|r".encode(), RankBye(), now=10.0 + now)
    jobs.handle(b"d|r", hello(), now=12.0)
    assert {*jobs.coordinators()} == {"a", "b", "d"}


def test_peers_of_a_job_that_is_not_there_are_answered_as_by_a_new_balancer(jobs):
    assert jobs.handle(b"a|r", RequestBatch(0, 0, 0, 0))[0].message == UnknownPeer()
    assert jobs.handle(b"a|heartbeat.w", WorkerHeartbeat("w", 0))[0].message == UnknownPeer()
    assert isinstance(jobs.handle(b"a|r", Ping())[0].message, Pong)
    assert jobs.handle(b"a|w", WorkerHello("w", 0, "host", 0)) == []
    assert jobs.unreachable(b"a|r", Bye(), 0.0) == []
    assert not jobs._jobs


def test_jobs_are_bounded_and_may_be_named_beforehand(jobs, monkeypatch):
    monkeypatch.setattr(module, "MAX_JOBS", 1)
    jobs.handle(b"a|r", hello())
    (refused,) = jobs.handle(b"b|r", hello())
    assert "serves 1 jobs, the most" in refused.message.reason
    (refused,) = JobRouter(Coordinator, frozenset({"a"})).handle(b"b|r", hello())
    assert refused.message == PeerRejected("this balancer serves job a only, and not b")
    (refused,) = jobs.handle(b"../x|r", hello())
    assert "cannot be a job's name" in refused.message.reason


def test_the_log_has_a_line_for_each_event(jobs, caplog):
    caplog.set_level(logging.INFO, "counterpoise")
    jobs.handle(b"a|r", hello(), now=0.0)
    jobs.handle(b"a|w", WorkerHello("worker-1", 0, "host", 0), now=0.0)
    jobs.handle(b"a|w", WorkerReady(20, "print", 0), now=0.0)
    jobs.handle(b"a|v", WorkerHello("worker-2", 0, "host", 0), now=0.0)
    jobs.handle(b"a|r", StartRun(0, 0, START), now=0.0)
    jobs.handle(b"a|v", WorkerBye(), now=1.0)
    jobs.tick(20.0)
    jobs.handle(b"a|r", RankBye(), now=21.0)
    assert [record.event for record in caplog.records] == [
        "job", "join", "join", "ready", "join", "epoch", "leave", "lost", "leave",
    ]  # fmt: skip
    assert {record.job for record in caplog.records} == {"a"}
    lost = caplog.records[-2]
    assert (lost.worker, lost.levelname) == ("worker-1", "WARNING")
    assert lost.getMessage() == "job a: worker worker-1 is lost (it sends no heartbeats)"
    assert caplog.records[-1].rank == "0, 1 (process 0 (host h, pid 1))"


def test_a_refused_newcomer_leaves_the_log_of_the_first_alone(jobs, caplog):
    jobs.handle(b"a|r", hello(), now=0.0)
    jobs.handle(b"a|s", hello("process 0 (host h, pid 2)"), now=1.0)
    assert jobs.in_question() == {b"a|r"}
    jobs.confirm(b"a|r", 1.1 + LATE_S)
    caplog.clear()
    caplog.set_level(logging.INFO, "counterpoise")
    sent = kinds(jobs.tick(1.2 + LATE_S))
    assert sent[-2:] == [(b"a|r", "Notice"), (b"a|s", "PeerRejected")]
    assert not caplog.records  # the server logs whom it turns away


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, DEFAULT_JOB),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"}, "77"),
        ({"TORCHELASTIC_RUN_ID": "a b/c", "SLURM_JOB_ID": "77"}, "a-b-c"),
        ({"RAY_JOB_ID": "02000000"}, "02000000"),
        ({"TORCHELASTIC_RUN_ID": "x" * 100}, "x" * 64),
    ],
)
def test_the_default_job_is_the_run_s_id(monkeypatch, variables, name):
    for each in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"):
        monkeypatch.delenv(each, raising=False)
    for each, value in variables.items():
        monkeypatch.setenv(each, value)
    assert default_job() == checked_job(name) == name
    assert job_of(peer_name(name, "rank-0")) == name


def test_in_a_process_of_ray_the_job_is_that_of_rays_context(monkeypatch):
    for each in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("RAY_JOB_ID", "ffffffff")
    context = SimpleNamespace(get_job_id=lambda: "03000000")
    ray = SimpleNamespace(get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert default_job() == "03000000"


def test_a_peer_s_name_fits_and_cannot_be_guessed():
    once, again = (peer_name("j" * 64, "host" * 100) for _ in range(2))
    assert len(once) <= 255
    assert once != again
