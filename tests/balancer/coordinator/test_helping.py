"""Idle workers are leased what a slow one has; one whose work they had to do may hang."""

from typing import Any

import pytest

from counterpoise.balancer.coordinator.run.granting import HELP_AFTER_S
from counterpoise.balancer.protocol.messages import WorkerReady
from counterpoise.balancer.protocol.parts import Probed
from counterpoise.balancer.protocol.payload_messages import Ack, Lease, ProbeDone, RequestBatch
from tests.balancer.coordinator.cluster import Cluster, do_leases, kinds, started

SLOW, QUICK = b"w", b"v"
MICROBATCHES = 2


@pytest.fixture
def cluster() -> Cluster:
    """Two workers: a slow one has a lease, and a quick one has done all that it was leased."""
    cluster = started()
    do_leases(cluster, cluster.worker(QUICK), QUICK)
    return cluster


def leased_to(peer: bytes, sent: Any) -> list[Lease]:
    return [message for to, message in sent if to == peer and isinstance(message, Lease)]


def leases(cluster: Cluster) -> Any:
    return cluster.coordinator.run.leases.of_worker(SLOW)


def take(cluster: Cluster, step: int) -> Any:
    """Take a step, while QUICK does all that it is leased; return what is sent."""
    sent = []
    for microbatch in range(MICROBATCHES):
        for rank, peer in enumerate((b"r0", b"r1")):
            now = cluster.send(peer, RequestBatch(0, rank, step, microbatch))
            now += cluster.send(peer, Ack(0, rank, step, microbatch))
            sent += now + do_leases(cluster, now, QUICK)
    return sent


def test_an_idle_worker_is_leased_what_another_has_shown_no_result_of_for_long(
    cluster: Cluster,
) -> None:
    (slow,) = leases(cluster)
    assert not leased_to(QUICK, cluster.tick(after_s=HELP_AFTER_S - 0.1))
    (helping,) = leased_to(QUICK, cluster.tick(after_s=0.2))
    assert [ref.ordinal for ref in helping.refs] == [*slow.samples]


def test_a_worker_whose_work_others_had_to_do_is_leased_nothing_before_it_answers(
    cluster: Cluster,
) -> None:
    helped = do_leases(cluster, cluster.tick(after_s=HELP_AFTER_S + 0.1), QUICK)
    assert {"Revoke", "Welcome"} <= {*kinds(helped, SLOW)}
    assert not leased_to(SLOW, helped + take(cluster, 0))
    welcome = cluster.coordinator.last_welcome
    answered = cluster.send(SLOW, WorkerReady(20, "same", welcome)) + take(cluster, 1)
    assert leased_to(SLOW, answered)


def test_one_that_has_just_shown_a_result_is_not_doubted(cluster: Cluster) -> None:
    sent = cluster.tick(after_s=HELP_AFTER_S + 0.1)
    (slow,) = leases(cluster)
    found = Probed(next(iter(slow.samples)), "first", (1,), 1)
    sent += cluster.send(SLOW, ProbeDone(slow.number, (found,)))
    helped = do_leases(cluster, sent, QUICK)
    assert "Revoke" in kinds(helped, SLOW)
    assert "Welcome" not in kinds(helped, SLOW)
