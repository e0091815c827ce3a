"""Who says what the data are: the first worker, as long as it is here or somebody has used it."""

import pytest
from msgspec import structs

from counterpoise.balancer.coordinator.run_control import APART_S
from counterpoise.balancer.coordinator.status_report import waiting_reason
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    PeerRejected,
    Pong,
    RankHello,
    RunFailed,
    StartRun,
    UnknownPeer,
    Welcome,
    WorkerBye,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import Ready, SampleRef, Weights
from counterpoise.balancer.protocol.payload_messages import Batch, Lease, RequestBatch, Revoke
from counterpoise.balancer.protocol.rank_session import RankSession
from tests.balancer.coordinator.cluster import JOB, OTHER, START, Cluster, do_leases

RUN = StartRun(0, 0, START)
LOST = ["leaves", "is silent", "cannot be reached"]


def come(cluster, name, count, fingerprint="good"):
    """A worker says hello and is ready; return the reason where it is refused, and what is sent."""
    peer = name.encode()
    sent, asked = cluster.send(peer, WorkerHello(name, 0, "host", 0)), 0
    while welcomes := [m for to, m in sent if to == peer and isinstance(m, Welcome)][asked:]:
        asked += 1
        sent += cluster.send(peer, WorkerReady(count, fingerprint, welcomes[0].number))
    refused = [m.reason for to, m in sent if to == peer and isinstance(m, PeerRejected)]
    return (refused[0] if refused else ""), sent


def go(cluster, name, how):
    if how == "leaves":
        cluster.send(name.encode(), WorkerBye())
    elif how == "is silent":
        cluster.tick(11.0)
    else:
        cluster.lose(name.encode(), WorkerBye())


def with_stale(run=RUN, job=JOB):
    """Two ranks, and a worker with another number of samples that was the first."""
    cluster = Cluster()
    for peer, rank in ((b"r0", 0), (b"r1", 1)):
        cluster.rank(peer, (rank,), job)
    assert come(cluster, "stale", 13, "stale")[0] == ""
    for peer in (b"r0", b"r1"):
        cluster.send(peer, run)
    return cluster


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("fingerprint", ["good", "stale"])
def test_after_the_first_worker_has_gone_the_next_says_what_the_data_are(how, fingerprint):
    cluster = with_stale()
    go(cluster, "stale", how)
    refused, sent = come(cluster, "good", 20, fingerprint)
    assert refused == ""
    assert [to for to, m in sent if m == Ready(20, fingerprint)] == [b"r0", b"r1"]
    assert [ref.ordinal for _, m in sent if isinstance(m, Lease) for ref in m.refs] == [0, 1, 2, 3]
    assert len(cluster.coordinator.run.feed.order) == 20


def test_while_it_is_here_others_are_told_who_said_otherwise():
    refused, _ = come(with_stale(), "good", 20)
    assert "(fingerprint good, 20 samples; the others have stale, 13, as worker stale" in refused


def test_before_a_worker_is_refused_those_who_said_otherwise_are_sent_something():
    """A worker that was killed is not known to be dead before, and the next may come at once."""
    cluster = with_stale()
    sent = cluster.send(b"good", WorkerHello("good", 0, "host", 0))
    told = cluster.send(b"good", WorkerReady(20, "good", sent[-1][1].number))
    assert (b"stale", Revoke(0)) in told
    assert {b"r0", b"r1"} <= {to for to, m in told if isinstance(m, Pong)}
    assert told[-1][0] == b"good"
    cluster.lose(b"stale", Revoke(0))
    accepted = cluster.send(b"good", WorkerReady(20, "good", told[-1][1].number))
    assert (b"r0", Ready(20, "good")) in accepted


def test_ranks_are_told_who_was_refused_and_why_while_no_worker_is_left():
    cluster = with_stale()
    come(cluster, "good", 20)
    assert "refused" not in waiting(cluster)
    go(cluster, "stale", "leaves")
    assert waiting(cluster).startswith(
        "a worker to connect; worker good was refused: this worker's"
    )
    come(cluster, "second", 20)
    assert "refused" not in waiting(cluster)


def waiting(cluster):
    return waiting_reason(cluster.coordinator)


def test_a_worker_that_comes_back_with_the_same_data_goes_on_with_the_run():
    cluster = with_stale()
    run = cluster.coordinator.run
    go(cluster, "stale", "cannot be reached")
    assert come(cluster, "another", 13, "stale")[0] == ""
    assert cluster.coordinator.run is run


def served(cluster):
    """Let both ranks have their first microbatch."""
    sent = [
        each
        for peer, rank in ((b"r0", 0), (b"r1", 1))
        for each in cluster.send(peer, RequestBatch(0, rank, 0, 0))
    ]
    state = cluster.coordinator
    while not state.is_served:
        held = [*state.run.leases]
        assert held
        for lease in held:
            refs = tuple(SampleRef(n, each.index) for n, each in lease.samples.items())
            again = Lease(lease.number, lease.kind, 0, refs)
            sent += do_leases(cluster, [(lease.worker, again)], lease.worker)
    assert any(isinstance(message, Batch) for _, message in sent)


@pytest.mark.parametrize("how", LOST)
def test_what_a_rank_has_had_a_part_of_holds_when_its_worker_has_gone(how):
    cluster = with_stale()
    served(cluster)
    go(cluster, "stale", how)
    refused, _ = come(cluster, "good", 20)
    assert "20 samples; the others have stale, 13, as worker stale said" in refused
    refused, _ = come(cluster, "same count", 13)
    assert "the others have stale, 13, as worker stale said" in refused
    assert waiting(cluster).startswith("a worker to connect; worker same count was refused")
    assert come(cluster, "right", 13, "stale")[0] == ""


def test_in_the_next_epoch_other_workers_may_say_what_the_data_are():
    cluster = with_stale()
    served(cluster)
    go(cluster, "stale", "leaves")
    for peer in (b"r0", b"r1"):
        cluster.send(peer, StartRun(1, 1, START))
    assert come(cluster, "good", 20)[0] == ""


def test_a_ledger_says_how_many_samples_there_are():
    cluster = with_stale(replace_samples(RUN, 20))
    assert cluster.coordinator.workers == {}
    assert waiting(cluster) == (
        "a worker to connect; worker stale was refused: this worker has 13 samples, and the "
        "trainer goes on in data of 20 (those of its ledger, or of which it has had a part): give "
        "it the data of then"
    )
    assert "goes on in data of 20" in come(cluster, "second", 13)[0]
    assert come(cluster, "good", 20)[0] == ""
    assert cluster.coordinator.run is not None


def replace_samples(run, samples):
    return structs.replace(run, samples=samples)


def test_a_rank_that_goes_on_elsewhere_is_refused_rather_than_workers_others_use():
    cluster = with_stale()
    served(cluster)
    cluster.lose(b"r1", WorkerBye())
    cluster.rank(b"again", (1,))
    cluster.send(b"again", replace_samples(RUN, 20))
    assert b"stale" in cluster.coordinator.workers
    cluster.tick(1.0)
    failed = [
        message for _, message in cluster.tick(APART_S + 1.0) if isinstance(message, RunFailed)
    ]
    assert "go on in data of 13 and 20 samples" in failed[0].reason


def test_where_only_refused_workers_come_all_ranks_are_told_and_end():
    cluster = with_stale(replace_samples(RUN, 20))
    told = [each for _ in range(14) for each in cluster.tick(10.0)]
    reasons = {to: m.reason for to, m in told if isinstance(m, RunFailed)}
    assert {*reasons} == {b"r0", b"r1"}
    assert reasons[b"r0"].startswith("worker stale was refused: this worker has 13 samples")
    assert reasons[b"r0"].endswith("no other has come for 120 s")


def test_a_rank_of_another_job_is_told_whose_job_it_is():
    cluster = Cluster(JOB)
    cluster.send(b"r", RankHello((0,), to_json(JOB), name="process 0 (host a, pid 1)"))
    ((_, refused),) = cluster.send(b"s", RankHello((1,), to_json(OTHER)))
    assert refused.reason.startswith(
        "this balancer serves another job, that of process 0 (host a, pid 1): on_error:"
    )


# --- the rank's side


def test_a_rank_waits_for_workers_with_as_many_samples_as_its_ledger():
    session = RankSession((0,), to_json(JOB), 1)
    session.handle(Ready(13, "stale"))
    (begun,) = session.begin(0, START, samples=20)
    assert isinstance(begun, StartRun)
    assert begun.samples == 20
    assert session.ready is None
    session.handle(Ready(13, "stale"))
    assert session.ready is None
    session.handle(Ready(20, "good"))
    assert session.ready == Ready(20, "good")


def test_a_rank_that_has_had_a_part_tells_the_next_balancer_how_many_samples_there_are():
    session = RankSession((0,), to_json(JOB), 1)
    session.begin(0, START)
    session.handle(Ready(20, "good"))
    session.handle(UnknownPeer())
    assert [m.samples for m in session.new_requests() if isinstance(m, StartRun)] == [-1]
    weights = Weights(1, 0, 1, 0, 1, 0)
    session.handle(Batch(0, 0, 0, 0, 2, weights, (1,), (0,), START, (), (), (), ()))
    session.handle(UnknownPeer())
    assert [m.samples for m in session.new_requests() if isinstance(m, StartRun)] == [20]
    session.handle(Ready(13, "stale"))
    assert session.ready is None
