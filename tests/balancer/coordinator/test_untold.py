"""What a rank may have taken and not acknowledged yet holds up no other rank."""

import pytest

from counterpoise.balancer.coordinator.delivery.tracker import DeliveryTracker
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import UNTOLD_BYTES, UNTOLD_PART, JobSpec
from tests.balancer.coordinator.test_delivery import arrive, filled


def send(delivery, rank, microbatch):
    assert delivery.ready(rank, 0, microbatch)
    delivery.mark_sent(rank, 0, microbatch)


def with_one_missing(untold_bytes):
    """Of step 0 rank 1 needs its second microbatch; rank 0 was sent its first, of 20 bytes.

    There is no room for the last sample of rank 1.
    """
    delivery = DeliveryTracker(0, 50, waits_for_holes=False, untold_bytes=untold_bytes)
    filled(delivery, microbatches=2)
    for _ in range(2):
        arrive(delivery, *delivery.decoding.next_samples(2))
    for rank in range(2):
        send(delivery, rank, 0)
    delivery.acknowledge(1, 0, 0)
    for most in (2, 1):
        arrive(delivery, *delivery.decoding.next_samples(most))
    assert delivery.front == (0, 0)
    assert delivery.ready(0, 0, 1)
    return delivery


@pytest.mark.parametrize(("untold_bytes", "number"), [(0, 0), (19, 0), (20, 1), (1000, 1)])
def test_what_is_missing_is_decoded_though_another_rank_has_not_said_what_it_took(
    untold_bytes, number
):
    delivery = with_one_missing(untold_bytes)
    assert len(delivery.decoding.next_samples(2)) == number


def test_what_is_missing_is_not_dropped_for_what_another_rank_has_not_said():
    delivery = with_one_missing(untold_bytes=20)
    (last,) = delivery.decoding.next_samples(2)
    arrive(delivery, last, nbytes=1000)
    assert delivery.ready(1, 0, 1)


def test_what_a_rank_was_not_sent_it_cannot_have_taken():
    delivery = with_one_missing(untold_bytes=1000)
    assert delivery.planned.is_front((0, 1))
    delivery.lose_sent(0, 0, 0)
    assert delivery.planned.is_front((0, 0))
    assert not delivery.planned.is_front((0, 1))


def test_no_other_step_is_the_front():
    delivery = DeliveryTracker(0, 1000, waits_for_holes=False, untold_bytes=1000)
    assert not delivery.planned.is_front((0, 0))
    filled(delivery, steps=2)
    assert delivery.planned.is_front((0, 0))
    assert not delivery.planned.is_front((1, 0))


@pytest.mark.parametrize(("ranks", "buffer_bytes"), [(1, 1 << 30), (64, 1 << 30), (2, 1200)])
def test_untold_payloads_are_a_small_part_of_the_byte_budget(ranks, buffer_bytes):
    job = JobSpec(PlanConfig(ranks, ranks, 1, ("tokens",), (None,)), buffer_bytes=buffer_bytes)
    assert job.untold_bytes <= UNTOLD_BYTES
    assert ranks * job.untold_bytes <= buffer_bytes // UNTOLD_PART
