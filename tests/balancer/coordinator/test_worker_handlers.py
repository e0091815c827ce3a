"""The coordinator and its workers where the simulation does not reach: who comes, goes, serves."""

import math

from counterpoise.balancer.protocol.messages import (
    Bye,
    RankBye,
    RunFailed,
    StartRun,
    UnknownPeer,
    WorkerBye,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
)
from counterpoise.balancer.protocol.parts import Probed, Ready
from counterpoise.balancer.protocol.payload_messages import Lease, ProbeDone, Revoke
from tests.balancer.coordinator.cluster import (
    JOB,
    OTHER,
    PLAN,
    START,
    Cluster,
    kinds,
    started,
)
from tests.balancer.coordinator.test_suspects import crashes, heartbeat, in_progress


def test_a_worker_that_is_not_known_is_asked_to_say_hello():
    cluster = Cluster(JOB)
    assert cluster.send(b"heartbeat.w", WorkerHeartbeat("w", 0)) == [
        (b"heartbeat.w", UnknownPeer())
    ]
    cluster.worker()
    assert cluster.send(b"heartbeat.w", WorkerHeartbeat("w", 0)) == []


def test_hello_said_twice_takes_nothing_from_a_worker():
    cluster = started()
    leases = cluster.coordinator.run.leases.of_worker(b"w")
    assert leases
    assert cluster.send(b"w", WorkerHello("w", 0, "host", 0)) == []
    assert cluster.coordinator.run.leases.of_worker(b"w") == leases


def test_a_worker_that_waits_for_a_job_and_says_so_again_is_not_lost():
    cluster = Cluster()
    hello = WorkerHello("w", 0, "host", 0)
    cluster.send(b"w", hello, hello)
    assert cluster.coordinator.diagnostics.lost == 0
    cluster.send(b"another", hello)
    assert cluster.coordinator.diagnostics.lost == 1


def test_a_worker_that_says_hello_by_another_name_leaves_nothing_of_the_first():
    cluster = Cluster()
    hellos = [WorkerHello(name, 0, "host", 0) for name in ("w", "v")]
    cluster.send(b"peer", *hellos, WorkerBye())
    cluster.rank(b"peer")
    cluster.send(b"another", hellos[0])  # it replaces nobody, least of all a rank
    assert list(cluster.coordinator.ranks) == [b"peer"]


def test_time_is_looked_at_seldom_while_there_are_only_workers():
    cluster = Cluster()
    waits = []
    for come in (list, cluster.worker, lambda: cluster.rank(b"r")):
        come()
        cluster.tick(after_s=1.0)
        waits.append(round(cluster.coordinator.next_deadline() - cluster.now, 3))
    assert waits == [math.inf, 1.0, 0.1]


def test_an_older_incarnation_is_sent_away():
    cluster = Cluster(JOB)
    cluster.worker(b"w", incarnation=1)
    late = cluster.send(b"late", WorkerHello("w", 0, "host", 0))
    assert late == [(b"late", Bye())]
    assert cluster.send(b"beat", WorkerHeartbeat("w", 1)) == []


def test_a_worker_that_missed_heartbeats_is_sent_something_so_that_a_dead_one_is_noticed():
    cluster = started()
    second = cluster.send(b"v", WorkerHello("v", 0, "host", 1), WorkerReady(20, "same"))
    assert kinds(second, b"v")[0] == "Welcome"
    assert (b"w", Revoke(0)) not in cluster.tick(1.0)
    nudges = cluster.tick(2.0)
    assert (b"w", Revoke(0)) in nudges
    granted = cluster.lose(b"w", Revoke(0))
    assert kinds(granted, b"v") == ["Lease"] * len(granted)
    assert cluster.coordinator.run.leases.of_worker(b"w") == []


def test_a_worker_without_heartbeats_is_lost_and_one_with_them_is_not():
    cluster = started()
    for _ in range(20):
        heartbeat(cluster, b"w", progress=in_progress(cluster, b"w"), after_s=1.0)
        cluster.tick()
    assert cluster.coordinator.run.leases.of_worker(b"w")
    cluster.tick(11.0)
    assert cluster.send(b"heartbeat.w", WorkerHeartbeat("w", 0)) == [
        (b"heartbeat.w", UnknownPeer())
    ]


def test_a_worker_with_other_data_is_refused():
    cluster = started()
    cluster.send(b"v", WorkerHello("v", 0, "host", 1))
    cluster.send(b"v", WorkerReady(21, "other"))
    (_, refused), *_ = cluster.send(b"v", WorkerReady(21, "other"))
    assert "install the same versions" in refused.reason
    assert "mixed_workers" not in refused.reason  # DataLoader has no such argument


def test_workers_share_what_is_to_be_probed():
    cluster = Cluster()
    cluster.rank(b"r")
    for peer in (b"u", b"v"):
        cluster.worker(peer)
    sent = cluster.send(b"r", StartRun(0, 0, START))
    leases = [(peer, len(lease.refs)) for peer, lease in sent if isinstance(lease, Lease)]
    assert leases[:2] == [(b"u", 2), (b"v", 1)]
    assert sum(count for _, count in leases) == PLAN.samples_per_step


def test_a_worker_that_leaves_gives_its_work_to_the_others():
    cluster = started()
    cluster.worker(b"v")
    cluster.send(b"w", WorkerBye())
    assert cluster.coordinator.run.leases.of_worker(b"v")
    assert not cluster.coordinator.run.leases.of_worker(b"w")


def test_a_worker_that_cannot_open_the_data_is_reported_to_all_and_serves_the_next_job():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.send(b"w", WorkerHello("w", 0, "host", 0))
    sent = cluster.send(b"w", WorkerFailed("no such file"))
    assert sent == [(b"r", RunFailed("worker w: no such file"))]
    cluster.send(b"r", RankBye())
    assert kinds(cluster.rank(b"s", job=OTHER), b"w") == ["Welcome"]


def test_workers_that_their_trainer_has_ended_return_their_leases_and_no_sample_is_suspected():
    cluster = started()
    cluster.worker(b"v")
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    sent = cluster.send(b"r0", WorkersEnded(("w", "unknown")))
    granted = [m for peer, m in sent if peer == b"v" and isinstance(m, Lease)]
    assert {ref.ordinal for m in granted for ref in m.refs} >= held.samples.keys()
    # The other worker's data are still the job's.
    assert (b"r0", Ready(20, "same")) in sent
    cluster.worker(b"w", incarnation=1)
    assert crashes(cluster) == 0
    assert cluster.coordinator.diagnostics.lost == 0


def test_after_the_last_worker_was_ended_the_next_may_have_another_data_set():
    cluster = Cluster(JOB)
    cluster.rank(b"r")
    cluster.worker(count=20)
    cluster.send(b"r", StartRun(0, 0, START))
    assert cluster.send(b"r", WorkersEnded(("w",)), StartRun(1, 1, START)) == []
    sent = cluster.worker(b"v", count=8)
    assert (b"r", Ready(8, "same")) in sent
    assert len(cluster.coordinator.run.feed.order) == 8


def test_so_may_the_next_if_its_hello_is_read_before_the_end_of_the_last():
    cluster = Cluster(JOB)
    cluster.rank(b"r")
    cluster.worker(count=20)
    (welcome,) = [m for _, m in cluster.send(b"v", WorkerHello("v", 0, "host", 0))]
    cluster.send(b"r", WorkersEnded(("w",)))
    sent = cluster.send(b"v", WorkerReady(8, "other", welcome.number))
    assert (b"r", Ready(8, "other")) in sent


def test_a_worker_that_is_to_end_is_leased_no_more_and_goes_when_its_leases_are_done():
    cluster = started()
    leases = cluster.coordinator.run.leases
    leaving = WorkerHeartbeat("w", 0, leaving=True)
    assert cluster.send(b"heartbeat.w", leaving) == []
    held = leases.of_worker(b"w")
    assert held
    sent = [
        message
        for lease in held
        for ordinal in list(lease.samples)
        for message in cluster.send(
            b"w", ProbeDone(lease.number, (Probed(ordinal, str(ordinal), (1,), 1),))
        )
    ]
    assert kinds(sent, b"w") == []
    assert cluster.send(b"heartbeat.w", leaving) == [(b"w", Bye())]
    assert b"w" not in cluster.coordinator.workers
    assert cluster.coordinator.diagnostics.lost == 0


def test_a_worker_that_is_to_end_stays_while_it_keeps_what_a_rank_needs():
    cluster = Cluster(JOB)
    cluster.worker()
    leaving = WorkerHeartbeat("w", 0, leaving=True)
    cluster.coordinator.kept.kept[b"w"] = {7}
    assert cluster.send(b"heartbeat.w", leaving) == []
    cluster.coordinator.kept.kept[b"w"].discard(7)
    assert cluster.send(b"heartbeat.w", leaving) == [(b"w", Bye())]
