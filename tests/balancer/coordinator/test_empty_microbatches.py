"""Microbatches of which only holes are left get a sample, where a loop can take no empty one."""

import random
from itertools import count, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balancer.coordinator.delivery.sample import Payload, Sample, SampleFailure
from counterpoise.balancer.coordinator.delivery.tracker import DeliveryTracker
from counterpoise.balancer.protocol.parts import EpochPosition
from tests.balancer.coordinator.cluster import tracker as empty_tracker

AFTER = EpochPosition(0, 0, 1, 0, "")


def sizes_of_a_rank(microbatches: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 4), min_size=microbatches, max_size=microbatches)


def planned(sizes: list[list[int]]) -> tuple[list[list[list[Sample]]], list[Sample]]:
    """Return a step of numbered samples, by microbatch and in a row; `sizes` per rank."""
    endless = (Sample(n, n, f"k{n}", (1 + n,), nbytes=10) for n in count())
    ranks = [[list(islice(endless, size)) for size in rank] for rank in sizes]
    return ranks, [sample for rank in ranks for batch in rank for sample in batch]


def tracker(
    sizes: list[list[int]], budget: int = 10_000, has_spares: bool = False, **more: Any
) -> Any:
    """Return a tracker with one step, and the step's samples."""
    delivery = empty_tracker(budget, skips=True, empty_microbatches=False, spares=has_spares)
    for name, value in more.items():
        getattr(delivery, name)(*value)
    ranks, samples = planned(sizes)
    delivery.add_step(0, ranks, AFTER)
    return delivery, samples


def decode(delivery: DeliveryTracker, samples: list[Sample], broken: set[int]) -> None:
    """Decode the samples in this order; `broken` ones are holes."""
    for sample in samples:
        if sample.ordinal in broken:
            delivery.fail(sample, SampleFailure("broken"))
        else:
            delivery.store([(sample, Payload(b"", 10, b"x" * 10))])


def contents(delivery: DeliveryTracker) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
    """Return the usable samples and the holes of each microbatch that can be sent."""
    found = {}
    for r, rank in enumerate(delivery.steps[0].ranks):
        for m in range(len(rank)):
            ready = delivery.ready(r, 0, m)
            if ready is not None:
                message = ready.message
                assert len(ready.payloads) == len(message.items)
                holes = [hole.ordinal for hole in message.holes]
                found[r, m] = [item.ordinal for item in message.items], holes
    return found


def test_an_empty_one_gets_a_sample_of_the_largest_that_runs_beside_it() -> None:
    delivery, samples = tracker([[1, 3], [2, 4]])
    decode(delivery, samples, broken={0})
    assert contents(delivery) == {
        (0, 0): ([5], [0]), (0, 1): ([1, 2, 3], []), (1, 0): ([4], []), (1, 1): ([6, 7, 8, 9], []),
    }  # fmt: skip


def test_without_one_beside_it_any_other_gives() -> None:
    delivery, samples = tracker([[1, 3], [1, 1]])
    decode(delivery, samples, broken={0})
    assert contents(delivery)[0, 0] == ([3], [0])


def test_weights_are_of_what_is_in_a_microbatch_then() -> None:
    delivery, samples = tracker([[1], [3]])
    decode(delivery, samples, broken={0})
    weights = [delivery.ready(rank, 0, 0).message.weights for rank in (0, 1)]
    # Label tokens of sample n are n + 1.
    assert [(w.samples, w.label_tokens) for w in weights] == [(1, 4), (2, 5)]
    assert {(w.step_samples, w.step_label_tokens) for w in weights} == {(3, 9)}


def test_without_enough_samples_the_whole_step_becomes_holes() -> None:
    delivery, samples = tracker([[1, 1], [1, 1]])
    decode(delivery, samples, broken={2})
    found = contents(delivery)
    assert [found[place] for place in sorted(found)] == [([], [0]), ([], [1]), ([], [2]), ([], [3])]
    message = delivery.ready(0, 0, 1).message
    assert message.weights.step_samples == 0
    assert message.step_holes == (0, 1, 2, 3)
    assert message.holes[0].reason.startswith("usable, but step 0 has fewer such samples than")
    assert delivery.budget.held_bytes == 0


def test_where_ranks_have_spare_samples_a_step_without_enough_keeps_its_own() -> None:
    delivery, samples = tracker([[1, 1], [1, 1]], has_spares=True)
    decode(delivery, samples, broken={2})
    found = contents(delivery)
    assert [found[place] for place in sorted(found)] == [([0], []), ([1], []), ([], [2]), ([3], [])]


def test_nothing_moves_where_the_loop_takes_empty_microbatches() -> None:
    delivery = empty_tracker(skips=True)
    ranks, samples = planned([[1], [3]])
    delivery.add_step(0, ranks, AFTER)
    decode(delivery, samples, broken={0})
    assert contents(delivery) == {(0, 0): ([], [0]), (1, 0): ([1, 2, 3], [])}


@given(
    sizes=st.integers(1, 3).flatmap(lambda m: st.lists(sizes_of_a_rank(m), min_size=1, max_size=4)),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_a_resumed_run_and_any_order_of_decoding_give_the_same(
    sizes: list[list[int]], chance: random.Random
) -> None:
    delivery, samples = tracker(sizes)
    broken = {each.ordinal for each in samples if chance.random() < 0.5}
    decode(delivery, chance.sample(samples, len(samples)), broken)
    found, holes = contents(delivery), delivery.known_holes()[1]
    usable = [ordinal for good, _ in found.values() for ordinal in good]
    assert sorted(usable) == sorted({s.ordinal for s in samples} - set(holes))
    assert len(usable) == len(set(usable))
    assert all(good for good, _ in found.values()) or not usable
    # A run that resumes inside the step knows its holes, and decodes only what is left.
    again, others = tracker(sizes, learn_holes=([0], holes))
    decode(again, [each for each in others if each.failure is None], set())
    assert contents(again) == found


@pytest.mark.parametrize("seed", range(10))
def test_the_line_does_not_jam_when_dropped_samples_are_moved(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [[chance.randint(1, 2) for _ in range(3)] for _ in range(2)]
    budget = 10 * max(sum(rank[m] for rank in sizes) for m in range(3))
    delivery, samples = tracker(sizes, budget)
    broken = set(chance.sample(range(len(samples)), chance.randint(1, len(samples) - 6 + 1)))
    taken = []
    for _ in range(100):
        decode(delivery, delivery.decoding.next_samples(chance.randint(1, 3)), broken)
        for place in contents(delivery) if delivery.steps else ():
            if place[1] == delivery.planned.front[1]:
                taken += [
                    item.ordinal for item in delivery.ready(place[0], 0, place[1]).message.items
                ]
                delivery.acknowledge(place[0], 0, place[1])
            if not delivery.steps:
                break
    assert not delivery.steps
    assert len(taken) == len(set(taken))
    assert set(taken) in ({each.ordinal for each in samples} - broken, set())
    assert (delivery.budget.held_bytes, delivery.budget.reserved_bytes) == (0, 0)
