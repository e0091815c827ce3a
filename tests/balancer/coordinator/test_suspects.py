"""Workers that hang, die or lose leases: which samples are suspected, and which results count."""

import pytest

from counterpoise.balancer.protocol.messages import (
    StartRun,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import Probed
from counterpoise.balancer.protocol.payload_messages import Lease, ProbeDone, Revoke
from tests.balancer.coordinator.cluster import (
    JOB,
    START,
    Cluster,
    do_leases,
    started,
)


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
