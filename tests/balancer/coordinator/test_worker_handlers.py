"""The coordinator and its workers where the simulation does not reach: who may come, who hangs."""

import math

import pytest

from counterpoise.balancer.protocol.messages import (
    Bye,
    RankBye,
    RunFailed,
    StartRun,
    UnknownPeer,
    Welcome,
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
    do_leases,
    kinds,
    started,
)


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


def in_progress(cluster, peer):
    """What a worker that hangs reports to work on: the first of its oldest lease."""
    for held in cluster.coordinator.run.leases.of_worker(peer):
        return held.number, next(iter(held.samples))
    return 0, -1


def heartbeat(cluster, peer, incarnation=0, progress=(0, -1), after_s=0.0):
    name, (lease, ordinal) = peer.decode(), progress
    message = WorkerHeartbeat(name, incarnation, lease=lease, ordinal=ordinal)
    return cluster.send(b"heartbeat." + peer, message, after_s=after_s)


def measured(run):
    """Return the samples that have been leased to be measured."""
    return run.feed.samples.seen.values()


def crashes(cluster):
    return sum(sample.crash_count for sample in cluster.coordinator.run.feed.samples.seen.values())


def test_a_sample_on_which_workers_hang_is_given_up():
    cluster = Cluster()
    cluster.rank(b"r")
    workers = [b"u", b"v", b"w"]
    for peer in workers:
        cluster.worker(peer)
    cluster.send(b"r", StartRun(0, 0, START))
    run = cluster.coordinator.run
    first = next(iter(measured(run)))
    for _ in range(3 * 40):
        for peer in workers:
            number, ordinal = in_progress(cluster, peer)
            if ordinal > first.ordinal:
                costs = Probed(ordinal, str(ordinal), (1,), 1)
                cluster.send(peer, ProbeDone(number, (costs,)))
            heartbeat(cluster, peer, progress=in_progress(cluster, peer), after_s=1.02)
        cluster.tick()
    assert first.crash_count == 3
    assert first.failure.reason == "3 worker processes died or hung while they worked on it"


def test_a_lease_that_was_lost_on_its_way_makes_no_sample_suspect():
    cluster = started()
    for _ in range(int(JOB.lease_s) + 2):
        heartbeat(cluster, b"w", after_s=1.0)
        cluster.tick()
    assert crashes(cluster) == 0


def test_a_worker_that_was_cut_off_and_comes_back_makes_no_sample_suspect():
    cluster = started()
    cluster.tick(after_s=11.0)
    assert not cluster.coordinator.run.leases.of_worker(b"w")
    cluster.worker()
    assert crashes(cluster) == 0


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_worker_that_comes_back_as_a_new_process_has_died_on_a_sample(lost_first):
    cluster = started()
    number, _ = in_progress(cluster, b"w")
    heartbeat(cluster, b"w", progress=(number, 2))
    cluster.tick(after_s=11.0 if lost_first else 1.0)
    cluster.send(b"again", WorkerHello("w", 1, "host", 0))
    assert [
        s.ordinal for s in cluster.coordinator.run.feed.samples.seen.values() if s.crash_count
    ] == [2]


def test_a_suspected_sample_that_can_be_probed_is_suspected_no_longer():
    cluster = started()
    cluster.send(b"again", WorkerHello("w", 1, "host", 0))
    assert crashes(cluster) == 1
    sent = cluster.send(b"again", WorkerReady(20, "same"))
    (first,) = [message for _, message in sent if isinstance(message, Lease)]
    assert (len(first.refs), first.alone) == (1, True)
    do_leases(cluster, sent, b"again")
    assert crashes(cluster) == 0


@pytest.mark.parametrize(
    ("first", "samples", "expected"), [(True, 1, 2), (True, None, 1), (False, 1, 1)]
)
def test_a_second_death_counts_only_for_who_had_the_suspect_alone(first, samples, expected):
    """One leased before the first death was not said to be suspected: others were in work, too."""
    cluster = started()
    run = cluster.coordinator.run
    (held,) = run.leases.of_worker(b"w")
    cluster.send(b"v", WorkerHello("v", 0, "host", 1))
    suspect, *_ = chosen = list(held.samples.values())[:samples]

    def die(name):
        cluster.send(b"again " + name.encode(), WorkerHello(name, 1, "host", 0))

    if first:
        die("w")
    run.leases.grant(b"v", "probe", chosen, cluster.now, shared=None if first else held)
    for name in ("v",) if first else ("w", "v"):
        die(name)
    assert suspect.crash_count == expected
    assert crashes(cluster) == expected


def test_a_worker_that_stays_silent_for_as_long_as_a_lease_counts_as_dead():
    cluster = started()
    cluster.tick(after_s=11.0)
    cluster.tick(after_s=JOB.lease_s - 12.0)
    assert crashes(cluster) == 0
    cluster.tick(after_s=2.0)
    assert crashes(cluster) == 1
    cluster.tick(after_s=JOB.lease_s)
    assert crashes(cluster) == 1


def late(cluster):
    """Let a lease of the worker run out; return it, and its first sample."""
    held = cluster.coordinator.run.leases.of_worker(b"w")[0]
    sample = next(iter(held.samples.values()))
    for _ in range(122):
        message = WorkerHeartbeat("w", 0, lease=held.number, ordinal=sample.ordinal)
        cluster.send(b"heartbeat.w", message, after_s=1.0)
        cluster.tick()
    assert cluster.coordinator.run.leases.of_worker(b"w") == []
    return held, sample


def costs(held, sample):
    return ProbeDone(held.number, (Probed(sample.ordinal, "k", (1,), 1),))


def test_a_sample_that_takes_longer_than_a_lease_counts_when_it_comes():
    cluster = started()
    held, sample = late(cluster)
    granted = cluster.send(b"w", costs(held, sample))
    assert sample.cost == (1,)
    assert sample.failure is None
    leased = [ref.ordinal for _, m in granted if isinstance(m, Lease) for ref in m.refs]
    assert leased
    assert sample.ordinal not in leased


@pytest.mark.parametrize(("peer", "incarnation"), [(b"w", 0), (b"w2", 1)])
def test_work_in_progress_before_another_hello_does_not_count(peer, incarnation):
    cluster = started()
    held, sample = late(cluster)
    if peer == b"w":
        cluster.lose(b"w", Revoke(0))
    cluster.send(peer, WorkerHello("w", incarnation, "host", 0), WorkerReady(20, "same"))
    cluster.send(b"w", costs(held, sample))
    assert sample.cost is None


def test_a_worker_that_begins_one_sample_after_another_keeps_its_leases():
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    assert len(held.samples) > 3
    for ordinal in held.samples:
        for _ in range(100):
            message = WorkerHeartbeat("w", 0, lease=held.number, ordinal=ordinal)
            cluster.send(b"heartbeat.w", message, after_s=1.0)
            cluster.tick()
    assert cluster.coordinator.run.leases.of_worker(b"w") == [held]


def test_a_worker_that_does_nothing_gives_back_what_it_was_given():
    """Its lease, or the results, were lost with a connection: it would be waited for in vain."""
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    assert heartbeat(cluster, b"w", after_s=3.0) == []
    told = heartbeat(cluster, b"w", after_s=1.0)
    assert [type(message) for _, message in told] == [Revoke, Welcome]
    assert told[0] == (b"w", Revoke(held.number))
    # Only a worker that answers gets work again; it may have missed the question.
    assert [type(message) for _, message in heartbeat(cluster, b"w", after_s=1.0)] == [Welcome]
    granted = cluster.send(b"w", WorkerReady(20, "same", told[1][1].number))
    again = [ref.ordinal for _, m in granted if isinstance(m, Lease) for ref in m.refs]
    assert again == list(held.samples)
    assert crashes(cluster) == 0


def test_a_suspected_sample_whose_lease_was_lost_goes_to_another():
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    next(iter(held.samples.values())).crash_count = 1
    cluster.worker(b"v")
    heartbeat(cluster, b"w", after_s=1.0)
    told = heartbeat(cluster, b"w", after_s=1.0)
    granted = [message for peer, message in told if peer == b"v" and isinstance(message, Lease)]
    assert granted[0].refs[0].ordinal == next(iter(held.samples))


def test_a_worker_that_shows_results_keeps_its_leases_whatever_its_heartbeats_report():
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    for sample in list(held.samples.values()):
        heartbeat(cluster, b"w", after_s=0.9)
        heartbeat(cluster, b"w", after_s=0.9)
        assert cluster.coordinator.run.leases.of_worker(b"w") == [held]
        cluster.send(b"w", costs(held, sample))


def test_what_comes_after_all_of_a_lease_that_was_taken_for_lost_counts():
    cluster = started()
    (held,) = cluster.coordinator.run.leases.of_worker(b"w")
    sample = next(iter(held.samples.values()))
    heartbeat(cluster, b"w", after_s=1.0)
    heartbeat(cluster, b"w", after_s=1.0)
    cluster.send(b"w", costs(held, sample))
    assert sample.cost == (1,)


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
