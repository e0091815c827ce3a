"""Leases: who has what until when, what renews them, and what still counts when one ran out."""

import pytest

from counterpoise.balancer.coordinator.delivery.sample import Sample
from counterpoise.balancer.coordinator.run.leases import LeaseTable

A, B = b"a", b"b"


def samples(*ordinals):
    return [Sample(ordinal, ordinal) for ordinal in ordinals]


def ordinals(held):
    return list(held.samples)


def lapsed(kind="decode", count=3):
    """A book in which worker A's lease 1 has run out; its samples."""
    book = LeaseTable(lease_s=10.0)
    mine = samples(*range(count))
    book.grant(A, kind, mine, now=0.0)
    assert [held.number for held in book.expired(10.0)] == [1]
    return book, mine


def test_a_result_renews_all_leases_of_its_worker():
    book = LeaseTable(lease_s=10.0)
    for worker, granted in ((A, samples(0, 1)), (A, samples(2)), (B, samples(3))):
        book.grant(worker, "decode", granted, now=0.0)
    assert book.result(A, 1, 0, now=9.0) is not None
    assert [held.worker for held in book.expired(10.0)] == [B]
    assert book.next_deadline() == 19.0


def test_a_result_counts_once_and_only_from_whom_it_was_leased_to():
    book = LeaseTable()
    (only,) = samples(7)
    book.grant(A, "decode", [only], now=0.0)
    assert book.result(B, 1, 7, now=1.0) is None
    assert book.result(A, 2, 7, now=1.0) is None
    assert book.result(A, 1, 8, now=1.0) is None
    assert book.result(A, 1, 7, now=1.0) == ("decode", only)
    assert book.result(A, 1, 7, now=1.0) is None


def test_what_a_late_worker_has_in_hand_counts_if_it_comes_first():
    book, mine = lapsed()
    book.grant(B, "decode", mine, now=10.0)
    assert book.result(A, 1, 0, now=11.0) == ("decode", mine[0])
    assert ordinals(book.of(B)[0]) == [1, 2]
    assert book.result(B, 2, 0, now=12.0) is None


def test_what_a_late_worker_has_in_hand_counts_no_more_when_another_was_first():
    book, mine = lapsed()
    book.grant(B, "decode", mine, now=10.0)
    assert book.result(B, 2, 0, now=11.0) == ("decode", mine[0])
    assert book.result(A, 1, 0, now=12.0) is None


def test_a_late_result_ends_a_lease_that_has_nothing_else():
    book, mine = lapsed(count=1)
    held = book.grant(B, "decode", mine, now=10.0)
    assert book.result(A, 1, 0, now=11.0) is not None
    assert book.take_useless() == [held]
    assert book.of(B) == []


def test_a_late_probe_takes_no_decode_lease_away():
    book, mine = lapsed(kind="probe")
    book.grant(B, "decode", mine[:1], now=10.0)
    assert book.result(A, 1, 0, now=11.0) == ("probe", mine[0])
    assert book.result(B, 2, 0, now=12.0) == ("decode", mine[0])


@pytest.mark.parametrize("fenced", ["lost", "given another", "passed over", "ended"])
def test_late_results_are_fenced(fenced):
    book, _ = lapsed()
    if fenced == "lost":
        assert book.lose(A) == []
    elif fenced == "given another":
        book.grant(A, "decode", samples(9), now=11.0)
    elif fenced == "passed over":
        book.passed_over(A, 2)
    else:
        book.clear()
    assert book.result(A, 1, 0, now=12.0) is None
