"""Delivery: the byte budget, what is decoded first, what is dropped, when a step may leave."""

import random

import pytest

from counterpoise.balancer.coordinator.delivery.sample import Payload, Sample, SampleFailure
from counterpoise.balancer.coordinator.delivery.tracker import LOST_AFTER_S
from counterpoise.balancer.protocol.parts import EpochPosition
from tests.balancer.coordinator.cluster import tracker

AFTER = EpochPosition(0, 0, 1, 0, "")
SHARERS = (b"a", b"b")


def sample(ordinal, nbytes=10, label=1):
    return Sample(ordinal, ordinal, key=f"k{ordinal}", cost=(label,), nbytes=nbytes)


def filled(delivery, ranks=2, microbatches=2, size=2, steps=1, nbytes=10):
    """Add steps of numbered samples; return them by ordinal."""
    samples = {}
    for step in range(steps):
        planned = []
        for _ in range(ranks):
            rank = []
            for _ in range(microbatches):
                batch = [sample(len(samples) + n, nbytes) for n in range(size)]
                samples |= {each.ordinal: each for each in batch}
                rank.append(batch)
            planned.append(rank)
        delivery.add_step(step, planned, AFTER)
    return samples


def arrive(delivery, *samples, nbytes=10):
    for each in samples:
        delivery.store([(each, Payload(b"", nbytes, b"x" * nbytes))])


def take_all(delivery):
    """Decode and take until nothing is left; return the ordinals in the order of decoding."""
    decoded, idle = [], 0
    while delivery.steps:
        work = delivery.decoding.next_samples(3)
        decoded += [each.ordinal for each in work]
        arrive(delivery, *work)
        number, microbatch = delivery.planned.front
        for rank in range(2):
            if delivery.ready(rank, number, microbatch):
                delivery.acknowledge(rank, number, microbatch)
                idle = 0
        idle += not work
        assert idle < 3, "stuck"
    return decoded


# --- order and budget


def test_samples_are_decoded_in_the_order_of_need():
    delivery = tracker(1000)
    filled(delivery, steps=2)
    order = [each for _ in range(8) for each in delivery.decoding.next_samples(2)]
    assert [each.place for each in order] == sorted(
        (step, microbatch, rank)
        for step in (0, 1) for microbatch in (0, 1) for rank in (0, 1) for _ in range(2)
    )  # fmt: skip


def test_one_piece_of_work_is_of_one_microbatch():
    delivery = tracker(1000)
    filled(delivery)
    assert len({each.position for each in delivery.decoding.next_samples(100)}) == 1


def test_a_piece_of_work_that_spans_microbatches_has_them_in_the_order_of_need():
    delivery = tracker(1000)
    filled(delivery)
    work = delivery.decoding.next_samples(7, rank=1, spans=True)
    assert [each.place[1:] for each in work] == [
        (0, 1), (0, 1), (0, 0), (0, 0), (1, 1), (1, 1), (1, 0),
    ]  # fmt: skip
    assert len(delivery.decoding.next_samples(7, rank=1, spans=True)) == 1


def test_a_suspected_sample_ends_a_piece_of_work_that_spans_microbatches():
    delivery = tracker(1000)
    samples = filled(delivery)
    suspected = next(each for each in samples.values() if each.position == (0, 1))
    suspected.crash_count = 1
    work = delivery.decoding.next_samples(9, spans=True)
    assert {each.position[1] for each in work} == {0}
    assert delivery.decoding.next_samples(9, spans=True) == [suspected]


def test_what_arrives_together_is_what_arrives_one_by_one():
    held: list[object] = []
    for at_once in (True, False):
        delivery = tracker(1000, skips=True)
        samples = [*filled(delivery, steps=2).values()]
        work = [(each, Payload(b"h", 10 + each.ordinal, b"x")) for each in samples[:9]]
        for decoded in [work] if at_once else [[each] for each in work]:
            delivery.store(decoded)
        step = delivery.steps[1]
        held.append((delivery.budget.held_bytes, delivery.budget.largest_bytes, step.unsettled))
        held.append([[batch.missing for batch in rank] for rank in step.ranks])
        assert [delivery.ready(0, 0, m) is not None for m in (0, 1)] == [True, True]
    assert held[:2] == held[2:]


def test_a_sample_that_waits_twice_is_given_out_once():
    delivery = tracker(1000)
    samples = filled(delivery)
    # It is decoded though nobody took it off the queue, as by a worker whose lease had expired.
    arrive(delivery, samples[0])
    delivery.decoding._drop(samples[0])
    work = [each.ordinal for _ in range(9) for each in delivery.decoding.next_samples(9)]
    assert sorted(work) == sorted(samples)
    assert delivery.budget.reserved_bytes == 10 * len(samples)


def test_nothing_beyond_the_budget_is_given_out_but_the_front():
    delivery = tracker(40)
    filled(delivery)
    assert [each.position[1] for each in delivery.decoding.next_samples(9)] == [0, 0, 0, 0]
    assert delivery.decoding.next_samples(9) == []


def test_what_comes_back_from_a_lost_lease_is_given_out_again():
    delivery = tracker(1000)
    filled(delivery)
    work = delivery.decoding.next_samples(2)
    for each in work:
        delivery.decoding.requeue(each)
    assert delivery.budget.reserved_bytes == 0
    assert delivery.decoding.next_samples(2) == work


def test_payloads_larger_than_expected_are_dropped_latest_first_and_decoded_again():
    delivery = tracker(100)
    samples = filled(delivery)
    first = [each for each in samples.values() if each.position[1] == 0]
    later = [each for each in samples.values() if each.position[1] == 1]
    arrive(delivery, *later, nbytes=20)
    arrive(delivery, *first, nbytes=20)
    assert delivery.budget.held_bytes == 100
    assert all(each.payload is not None for each in first)
    assert [each.ordinal for each in later if each.payload is not None] == [later[0].ordinal]
    for rank in (0, 1):
        assert delivery.ready(rank, 0, 0) is not None
        assert delivery.ready(rank, 0, 1) is None
        delivery.acknowledge(rank, 0, 0)
    arrive(delivery, *delivery.decoding.next_samples(9), nbytes=20)
    assert delivery.ready(0, 0, 1) is not None
    assert delivery.ready(1, 0, 1) is not None


@pytest.mark.parametrize("waits_for_holes", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_line_never_jams_and_forgets_everything(seed, waits_for_holes):
    chance = random.Random(seed)
    size, ranks = chance.randint(1, 3), 2
    delivery = tracker(ranks * size * 10 + chance.randint(0, 30), waits_for_holes)
    filled(delivery, ranks, chance.randint(1, 4), size, steps=chance.randint(1, 3))
    take_all(delivery)
    assert (delivery.budget.held_bytes, delivery.budget.reserved_bytes) == (0, 0)


def test_a_budget_below_one_microbatch_per_rank_names_what_is_needed():
    with pytest.raises(ValueError, match="step 0 needs 40; raise buffer_bytes to at least that"):
        filled(tracker(39))


# --- what ranks have, and have not acknowledged


def sent(budget=100):
    """Return a delivery of which both ranks were sent their first microbatch, 40 bytes each."""
    delivery = tracker(budget)
    samples = filled(delivery, nbytes=20).values()
    arrive(delivery, *[each for each in samples if each.position[1] == 0], nbytes=20)
    for rank in (0, 1):
        assert delivery.ready(rank, 0, 0) is not None
        delivery.mark_sent(rank, 0, 0)
    return delivery


def test_what_a_rank_was_sent_counts_until_it_is_acknowledged():
    delivery = sent(budget=100)
    assert (delivery.budget.held_bytes, delivery.budget.sent_bytes) == (0, 80)
    arrive(delivery, *delivery.decoding.next_samples(9), nbytes=20)
    assert (delivery.budget.held_bytes, delivery.budget.sent_bytes) == (20, 80)
    assert delivery.decoding.next_samples(9) == []
    delivery.acknowledge(0, 0, 0)
    assert delivery.budget.sent_bytes == 40
    assert len(delivery.decoding.next_samples(9)) == 2


def test_what_was_lost_on_its_way_is_decoded_again_when_it_is_asked_for():
    delivery = sent()
    assert delivery.ready(1, 0, 0, LOST_AFTER_S - 0.1) is None
    assert delivery.budget.sent_bytes == 80
    assert delivery.ready(1, 0, 0, LOST_AFTER_S) is None
    again = delivery.decoding.next_samples(9)
    assert {each.place for each in again} == {(0, 0, 1)}
    arrive(delivery, *again, nbytes=20)
    assert delivery.ready(1, 0, 0) is not None
    delivery.mark_sent(1, 0, 0)
    assert delivery.budget.sent_bytes == 80


def send_to_both(delivery, now):
    """Send rank 0's first microbatch to both processes that share the rank, which wait for it."""
    for peer in SHARERS:
        assert delivery.ready(0, 0, 0, now, peer) is not None
        delivery.mark_sent(0, 0, 0, now, peer, SHARERS)


def ask_again(delivery, now):
    assert [delivery.ready(0, 0, 0, now, peer) for peer in SHARERS] == [None, None]


def lose(delivery, _):
    for peer in SHARERS:
        delivery.lose_sent(0, 0, 0, peer)


@pytest.mark.parametrize(
    ("what", "now"), [(ask_again, LOST_AFTER_S), (lose, 0.1)], ids=["on its way", "handles"]
)
def test_what_two_who_share_a_rank_have_lost_is_decoded_once_and_both_get_it_at_once(what, now):
    delivery = tracker(40)
    filled(delivery, ranks=1, nbytes=20)
    arrive(delivery, *delivery.decoding.next_samples(9), nbytes=20)
    send_to_both(delivery, 0.0)
    assert (delivery.budget.held_bytes, delivery.budget.sent_bytes) == (0, 40)
    what(delivery, now)
    arrive(delivery, *delivery.decoding.next_samples(9), nbytes=20)
    send_to_both(delivery, now)
    assert (delivery.budget.held_bytes, delivery.budget.sent_bytes) == (0, 40)


def test_of_what_was_sent_nothing_is_counted_once_it_is_acknowledged():
    delivery = sent()
    for rank in (0, 1):
        delivery.acknowledge(rank, 0, 0)
    take_all(delivery)
    assert (
        delivery.budget.held_bytes,
        delivery.budget.sent_bytes,
        delivery.budget.reserved_bytes,
    ) == (0, 0, 0)


# --- holes


def test_a_step_that_waits_for_holes_needs_all_its_samples_and_counts_without_holes():
    delivery = tracker(1000, skips=True)
    samples = filled(delivery)
    arrive(delivery, *[samples[n] for n in range(7)])
    assert delivery.ready(0, 0, 0) is None
    delivery.fail(samples[7], SampleFailure("broken"))
    weights = delivery.ready(0, 0, 0).message.weights
    assert (weights.samples, weights.rank_samples, weights.step_samples) == (2, 4, 7)
    assert weights.step_label_tokens == 7
    last = delivery.ready(1, 0, 1).message
    assert [hole.reason for hole in last.holes] == ["broken"]
    assert [item.key for item in last.items] == ["k6"]


@pytest.mark.parametrize("early", [True, False])
def test_of_a_step_whose_holes_are_known_only_what_was_not_taken_is_decoded(early):
    delivery = tracker(1000, skips=True)
    if early:
        delivery.learn_holes([0], [1, 6])
    samples = filled(delivery)
    delivery.acknowledge(1, 0, 0)
    if not early:
        assert delivery.ready(0, 0, 0) is None
        delivery.learn_holes([0], [1, 6])
    order = [each.ordinal for _ in range(4) for each in delivery.decoding.next_samples(9)]
    assert order == [0, 2, 3, 7]
    arrive(delivery, samples[0])
    message = delivery.ready(0, 0, 0).message
    assert (message.weights.samples, message.weights.step_samples) == (1, 6)
    assert message.step_holes == (1, 6)


def test_what_is_decoded_in_vain_is_ignored():
    delivery = tracker(1000)
    samples = filled(delivery)
    (work,) = delivery.decoding.next_samples(1)
    delivery.acknowledge(1, 0, 0)
    delivery.skip_to([work.place[2]], 0, 1)
    delivery.fail(work, SampleFailure("cut"))
    assert not any(step.holes for step in delivery.steps.values())
    arrive(delivery, samples[work.ordinal])
    assert (delivery.budget.held_bytes, delivery.budget.reserved_bytes) == (0, 0)


def test_known_holes_of_other_steps_unblock_no_step():
    delivery = tracker(1000, skips=True)
    samples = filled(delivery)
    delivery.learn_holes([1], [1])
    arrive(delivery, samples[0])
    assert delivery.ready(0, 0, 0) is None
    assert samples[1].failure


def test_a_step_that_does_not_wait_sends_a_microbatch_as_soon_as_it_is_complete():
    delivery = tracker(1000)
    samples = filled(delivery)
    arrive(delivery, samples[0])
    assert delivery.ready(0, 0, 0) is None
    arrive(delivery, samples[1])
    assert delivery.ready(0, 0, 0) is not None
    assert delivery.ready(1, 0, 0) is None


def test_a_failure_and_a_payload_said_twice_change_nothing():
    delivery = tracker(1000)
    samples = filled(delivery)
    delivery.fail(samples[0], SampleFailure("first"))
    delivery.fail(samples[0], SampleFailure("second"))
    arrive(delivery, samples[0])
    arrive(delivery, samples[1], samples[1])
    assert delivery.budget.held_bytes == 10
    batch = delivery.ready(0, 0, 0)
    assert [hole.reason for hole in batch.message.holes] == ["first"]
    assert len(batch.payloads) == 1


def test_what_is_not_there_can_be_asked_for_and_acknowledged():
    delivery = tracker(1000)
    arrive(delivery, *filled(delivery).values())
    for rank, step, microbatch in [(9, 0, 0), (-1, 0, 0), (0, 0, 9), (0, 0, -1)]:
        assert delivery.ready(rank, step, microbatch) is None
        delivery.acknowledge(rank, step, microbatch)
    assert delivery.ready(0, 9, 0) is None
    assert delivery.budget.held_bytes == 80
    for rank in (0, 1):
        for microbatch in (0, 1, 1):
            delivery.acknowledge(rank, 0, microbatch)
    assert delivery.steps == {}
    assert delivery.budget.held_bytes == 0


def test_what_ranks_had_before_a_run_was_started_again_is_not_held_for_them():
    delivery = tracker(1000)
    arrive(delivery, *filled(delivery).values())
    delivery.acknowledge(0, 9, 0)
    assert delivery.budget.held_bytes == 40
    delivery.acknowledge(1, 9, 0)
    assert (delivery.steps, delivery.budget.held_bytes) == ({}, 0)
    assert [delivery.progress.needed((rank,)) for rank in (0, 1)] == [(9, 1), (9, 1)]


def test_a_late_payload_of_a_taken_microbatch_is_not_kept():
    delivery = tracker(1000)
    samples = filled(delivery)
    arrive(delivery, *samples.values())
    for rank in (0, 1):
        for microbatch in (0, 1):
            delivery.acknowledge(rank, 0, microbatch)
    arrive(delivery, samples[3])
    assert delivery.budget.held_bytes == 0
