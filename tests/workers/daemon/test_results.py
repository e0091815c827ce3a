"""Which results of a lease travel together: nothing slow waits, and nothing is forgotten."""

from random import Random

from counterpoise.balancer.protocol.parts import DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import DecodeDone, ProbeDone
from counterpoise.workers.daemon.results import MOST_BYTES, MOST_S, QUICK_S, LeaseResults


def item(ordinal: int, serial: int = 0) -> DecodedItem:
    return DecodedItem(ordinal, f"k{ordinal}", (), b"", serial, 100 * MOST_BYTES if serial else 0)


def add(results: LeaseResults, ordinal: int, *, size: int = 10, took_s: float = 0.0) -> bool:
    return results.add_decoded(3, item(ordinal), bytes(size), took_s)


def test_small_samples_that_were_quick_wait_for_each_other() -> None:
    results = LeaseResults()
    assert not results
    assert [add(results, n, took_s=QUICK_S / 2) for n in range(4)] == [False] * 4
    assert results
    done = DecodeDone(3, tuple(item(n) for n in range(4)), usual_us=round(5e5 * QUICK_S))
    assert results.take() == [(done, (bytes(10),) * 4)]
    assert not results
    assert results.take() == []


def test_large_and_slow_ones_are_sent_at_once_with_all_before_them() -> None:
    for last in ({"size": MOST_BYTES}, {"took_s": 2 * QUICK_S}):
        results = LeaseResults()
        assert not add(results, 0)
        assert add(results, 1, **last)
        ((message, payloads),) = results.take()
        assert isinstance(message, DecodeDone)
        assert [each.ordinal for each in message.items] == [0, 1]
        assert [len(each) for each in payloads] == [10, last.get("size", 10)]
        assert not add(results, 2)  # nothing is left of those before


def test_samples_that_took_long_together_do_not_wait_for_more() -> None:
    results, each_s = LeaseResults(), 0.9 * QUICK_S
    sent = [add(results, n, took_s=each_s) for n in range(int(MOST_S / each_s) + 1)]
    assert sent == [False] * (len(sent) - 1) + [True]


def test_what_the_worker_keeps_is_not_large() -> None:
    results = LeaseResults()
    assert not results.add_decoded(3, item(0, serial=7), None, 0.0)
    assert results.take() == [(DecodeDone(3, (item(0, serial=7),), usual_us=0), ())]


def test_costs_of_a_lease_come_in_one_message_however_long_they_take() -> None:
    results = LeaseResults()
    probed = [Probed(n, f"k{n}", (n,), 5) for n in range(3)]
    for each in probed:
        results.add_probed(7, each, took_s=1.0)
    assert results.take() == [(ProbeDone(7, tuple(probed), usual_us=1_000_000), ())]


def test_what_belongs_to_a_job_that_is_over_is_not_sent() -> None:
    results = LeaseResults()
    add(results, 0, size=MOST_BYTES // 2)
    results.add_probed(3, Probed(1, "k1", (1,), 5), took_s=0.0)
    results.clear()
    assert results.take() == []
    assert not add(results, 1, size=MOST_BYTES // 2)


def sent_ordinals(results: LeaseResults) -> list[int]:
    messages = [message for message, _ in results.take()]
    return [
        item.ordinal for each in messages if isinstance(each, DecodeDone) for item in each.items
    ]


def test_everything_is_sent_once_and_in_order() -> None:
    draw, results, sent = Random(5), LeaseResults(), []
    for n in range(300):
        took = draw.choice([0.0, QUICK_S / 2, QUICK_S * 3])
        if add(results, n, size=draw.choice([1, 1000, MOST_BYTES]), took_s=took):
            sent += sent_ordinals(results)
    sent += sent_ordinals(results)
    assert sent == list(range(300))
