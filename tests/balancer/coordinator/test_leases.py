"""Leases: who has what until when, what renews them, and what still counts when one ran out."""

import pytest

from counterpoise.balancer.coordinator.delivery.sample import Sample
from counterpoise.balancer.coordinator.run.leases import LeaseTable

A, B = b"a", b"b"


def samples(*ordinals):
    return [Sample(ordinal, ordinal) for ordinal in ordinals]


def ordinals(held):
    return list(held.samples)


def expired(kind="decode", count=3):
    """A leases in which worker A's lease 1 has run out; its samples."""
    leases = LeaseTable(lease_s=10.0)
    mine = samples(*range(count))
    leases.grant(A, kind, mine, now=0.0)
    assert [held.number for held in leases.take_expired(10.0)] == [1]
    return leases, mine


def test_a_result_renews_all_leases_of_its_worker():
    leases = LeaseTable(lease_s=10.0)
    for worker, granted in ((A, samples(0, 1)), (A, samples(2)), (B, samples(3))):
        leases.grant(worker, "decode", granted, now=0.0)
    assert leases.complete(A, 1, [0], now=9.0)[1]
    assert [held.worker for held in leases.take_expired(10.0)] == [B]
    assert [held.deadline for held in leases] == [19.0] * 2


def test_a_result_counts_once_and_only_from_whom_it_was_leased_to():
    leases = LeaseTable()
    (only,) = samples(7)
    leases.grant(A, "decode", [only], now=0.0)
    assert not leases.complete(B, 1, [7], now=1.0)[1]
    assert not leases.complete(A, 2, [7], now=1.0)[1]
    assert not leases.complete(A, 1, [8], now=1.0)[1]
    assert leases.complete(A, 1, [7], now=1.0) == ("decode", {7: only})
    assert not leases.complete(A, 1, [7], now=1.0)[1]


def test_a_late_result_counts_if_it_comes_first():
    leases, mine = expired()
    leases.grant(B, "decode", mine, now=10.0)
    assert leases.complete(A, 1, [0], now=11.0) == ("decode", {0: mine[0]})
    assert ordinals(leases.of_worker(B)[0]) == [1, 2]
    assert not leases.complete(B, 2, [0], now=12.0)[1]


def test_a_late_result_does_not_count_when_another_was_first():
    leases, mine = expired()
    leases.grant(B, "decode", mine, now=10.0)
    assert leases.complete(B, 2, [0], now=11.0) == ("decode", {0: mine[0]})
    assert not leases.complete(A, 1, [0], now=12.0)[1]


def test_a_late_result_ends_a_lease_that_has_nothing_else():
    leases, mine = expired(count=1)
    held = leases.grant(B, "decode", mine, now=10.0)
    assert leases.complete(A, 1, [0], now=11.0)[1]
    assert leases.useless == [held]
    assert leases.of_worker(B) == []


def test_a_late_probe_takes_no_decode_lease_away():
    leases, mine = expired(kind="probe")
    leases.grant(B, "decode", mine[:1], now=10.0)
    assert leases.complete(A, 1, [0], now=11.0) == ("probe", {0: mine[0]})
    assert leases.complete(B, 2, [0], now=12.0) == ("decode", {0: mine[0]})


@pytest.mark.parametrize("fenced", ["lost", "given another", "skipped", "ended"])
def test_late_results_are_fenced(fenced):
    leases, _ = expired()
    if fenced == "lost":
        assert leases.take_of_worker(A) == []
    elif fenced == "given another":
        leases.grant(A, "decode", samples(9), now=11.0)
    elif fenced == "skipped":
        leases.take_skipped(A, 2)
    else:
        leases.take_all()
    assert not leases.complete(A, 1, [0], now=12.0)[1]
