"""Microbatches that a worker has laid out: parts of one payload, of use together only."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from counterpoise.balancer.coordinator.delivery.announced import take_announced
from counterpoise.balancer.coordinator.delivery.shared_payloads import SharedPayloads
from counterpoise.balancer.coordinator.delivery.tracker import DeliveryTracker
from counterpoise.balancer.coordinator.run.granting import LeaseGranter
from counterpoise.balancer.coordinator.run.leases import LeaseTable
from counterpoise.balancer.protocol.messages import (
    LAID_OUT,
    DecodedItem,
    DecodeDone,
    EpochPosition,
    Handles,
    Lease,
    PayloadHandle,
    PayloadServer,
    WholeMicrobatch,
)
from tests.balancer.coordinator.test_empty_microbatches import planned

AFTER = EpochPosition(0, 0, 1, 0)
BATCH, SAMPLE = b"batch", b"sample"


class Delivered:
    """A step's delivery; `sizes` are those of its microbatches on one rank."""

    def __init__(self, *sizes: int, budget: int = 10_000) -> None:
        self.shared = SharedPayloads()
        self.tracker = DeliveryTracker(0, budget, waits_for_holes=False, shared=self.shared)
        ranks, self.samples = planned([[*sizes]])
        self.tracker.add_step(0, ranks, AFTER)
        self.serial = 0

    def announce(self, headers: Sequence[bytes], server: PayloadServer | None = None) -> list[Any]:
        """Return the payloads of a message with these headers, ten bytes each in one run."""
        self.serial += 1
        count = len(headers)
        handle = PayloadHandle(1, self.serial, 0, 0, 10 * count)
        handles = Handles((handle,), (0,) * count, tuple(range(0, 10 * count, 10)), (10,) * count)
        items = tuple(DecodedItem(n, f"k{n}", (), header) for n, header in enumerate(headers))
        message = DecodeDone(1, items, handles)
        return take_announced(self.shared, b"w", server, message, ())[1]

    def store(self, ordinals: Sequence[int], headers: Sequence[bytes], wanted: int = 99) -> None:
        """Store a message about samples, of which the first `wanted` were still asked for."""
        payloads = self.announce(headers)
        every = zip(ordinals, headers, payloads, strict=True)
        found = [(self.samples[n], header, payload, 10) for n, header, payload in every]
        self.tracker.store(found[:wanted])
        for payload in payloads:
            if not payload.is_held:
                payload.free()

    @property
    def waiting(self) -> list[int]:
        """The samples that are to be decoded, which are leased now."""
        return [sample.ordinal for sample in self.tracker.decoding.next_samples(99, spans=True)]

    def headers(self, microbatch: int) -> list[bytes] | None:
        """Return the headers of a microbatch that is ready, None if it is not."""
        ready = self.tracker.ready(0, 0, microbatch)
        return None if ready is None else [item.header for item in ready.message.items]


def test_a_microbatch_is_delivered_as_it_was_laid_out() -> None:
    delivered = Delivered(3, 2)
    assert delivered.waiting == [0, 1, 2, 3, 4]
    delivered.store([0, 1, 2, 3, 4], [BATCH, LAID_OUT, LAID_OUT, SAMPLE, SAMPLE])
    assert delivered.headers(0) == [BATCH, LAID_OUT, LAID_OUT]
    assert delivered.headers(1) == [SAMPLE, SAMPLE]


@pytest.mark.parametrize("first", [0, 2])
def test_with_a_sample_that_has_come_already_the_others_are_decoded_again(first: int) -> None:
    delivered = Delivered(3, 1)
    assert delivered.waiting == [0, 1, 2, 3]
    delivered.store([first], [SAMPLE])
    delivered.store([0, 1, 2], [BATCH, LAID_OUT, LAID_OUT])
    assert delivered.headers(0) is None
    rest = [n for n in range(3) if n != first]
    assert delivered.waiting == rest
    assert len(delivered.shared) == 1  # that of the first; nobody needs the other
    delivered.store(rest, [SAMPLE, SAMPLE])
    assert delivered.headers(0) == [SAMPLE] * 3


def test_the_first_part_alone_is_of_no_use() -> None:
    delivered = Delivered(2)
    assert delivered.waiting == [0, 1]
    delivered.store([0, 1], [BATCH, LAID_OUT], wanted=1)
    assert delivered.headers(0) is None
    assert delivered.waiting[0] == 0


def test_parts_in_another_order_or_of_two_microbatches_are_of_no_use() -> None:
    delivered = Delivered(2, 2)
    assert delivered.waiting == [0, 1, 2, 3]
    delivered.store([1, 0], [BATCH, LAID_OUT])
    delivered.store([2, 1], [BATCH, LAID_OUT])
    assert (delivered.headers(0), delivered.headers(1)) == (None, None)


def test_a_batch_is_dropped_as_a_whole() -> None:
    delivered = Delivered(2, 3, budget=40)
    assert delivered.waiting == [0, 1, 2, 3]
    delivered.store([2, 3, 4], [BATCH, LAID_OUT, LAID_OUT])
    assert delivered.headers(1) == [BATCH, LAID_OUT, LAID_OUT]
    delivered.store([0, 1], [BATCH, LAID_OUT])
    # 50 bytes are more than 40: all 30 of the later one go.
    assert delivered.tracker.budget.held_bytes == 20
    assert delivered.headers(0) == [BATCH, LAID_OUT]
    assert delivered.headers(1) is None
    assert len(delivered.shared) == 1
    delivered.tracker.acknowledge(0, 0, 0)
    assert delivered.waiting == [2, 3, 4]


def test_what_a_worker_had_goes_with_it_once() -> None:
    delivered = Delivered(3)
    assert delivered.waiting == [0, 1, 2]
    delivered.store([0, 1, 2], [BATCH, LAID_OUT, LAID_OUT])
    delivered.tracker.decoding.drop_those_of(b"w")
    assert delivered.headers(0) is None
    assert delivered.waiting == [0, 1, 2]
    delivered.store([0, 1, 2], [BATCH, LAID_OUT, LAID_OUT])
    assert delivered.headers(0) == [BATCH, LAID_OUT, LAID_OUT]


def test_only_of_what_lies_on_the_ranks_machine_parts_are_believed() -> None:
    delivered = Delivered(2)
    assert [each.parts for each in delivered.announce([BATCH, LAID_OUT, SAMPLE])] == [2, 2, 1]
    server = PayloadServer(1, "tcp://h:1", b"", b"", b"")
    assert [each.parts for each in delivered.announce([BATCH, LAID_OUT], server)] == [1, 1]
    assert [each.parts for each in delivered.announce([LAID_OUT, BATCH, LAID_OUT])] == [1, 2, 2]


# --- leases


def granted(*sizes: int, most: int = 99, lays_out: bool = True, most_whole: int = 1) -> Lease:
    delivered = Delivered(*sizes)
    # In another order than that of their numbers.
    for batch in delivered.tracker.steps[0].ranks[0]:
        batch.samples = batch.samples[::-1]
    feed: Any = None
    granter = LeaseGranter(0, LeaseTable(9.0), feed, delivered.tracker, lays_out)
    samples = delivered.tracker.decoding.next_samples(
        most, spans=True, most_whole=most_whole * lays_out
    )
    return granter._message(granter.leases.grant(b"w", "decode", samples, 0.0))


def test_a_lease_says_which_microbatches_it_has_all_of_in_their_own_order() -> None:
    lease = granted(2, 3, 4)
    assert [ref.ordinal for ref in lease.refs] == [1, 0, 4, 3, 2, 8, 7, 6, 5]
    assert lease.whole == (WholeMicrobatch(0, 2), WholeMicrobatch(2, 3), WholeMicrobatch(5, 4))


def test_a_lease_ends_with_a_microbatch_unless_one_is_more_than_a_lease_has() -> None:
    assert [ref.ordinal for ref in granted(2, 3, 4, most=7).refs] == [1, 0, 4, 3, 2]
    assert [ref.ordinal for ref in granted(2, 3, 4, most=7, lays_out=False).refs] == [*range(7)]
    too_large = granted(5, 2, most=4)
    assert ([ref.ordinal for ref in too_large.refs], too_large.whole) == ([0, 1, 2, 3], ())
    whole = granted(5, 2, most=4, most_whole=5)
    assert ([ref.ordinal for ref in whole.refs], whole.whole) == (
        [4, 3, 2, 1, 0],
        (WholeMicrobatch(0, 5),),
    )


def test_a_worker_gets_all_of_a_microbatch_that_takes_no_longer_than_a_lease() -> None:
    for each_ms, due in ((0.01, 300), (0.03, 300), (0.04, 128), (0.1, 100)):
        delivered = Delivered(20, 300, budget=10**6)
        feed: Any = SimpleNamespace(has_to_probe=lambda _: False)
        granter = LeaseGranter(0, LeaseTable(9.0), feed, delivered.tracker, lays_out=True)
        first = granter.grant(b"w", 0.0, decode_ms=each_ms)
        assert first is not None
        delivered.store([ref.ordinal for ref in first.refs], [SAMPLE] * 20)
        delivered.tracker.ready(0, 0, 0)
        delivered.tracker.mark_sent(0, 0, 0, 0.0, b"r")
        lease = granter.grant(b"w", 0.0, decode_ms=each_ms)
        assert lease is not None
        assert (len(first.refs), len(lease.refs)) == (20, due)


def test_one_of_a_single_sample_is_no_matter() -> None:
    assert granted(1, 2).whole == (WholeMicrobatch(1, 2),)


def test_where_nothing_is_laid_out_leases_do_not_speak_of_it() -> None:
    assert granted(2, 3, lays_out=False).whole == ()
