"""Samples that no step has taken: the same answers whether they are objects or numbers."""

import numpy as np
import pytest

from counterpoise.balancer.coordinator.delivery.sample import Payload, SampleFailure
from counterpoise.balancer.coordinator.run.known_costs import KnownCosts, OpenSamples

ORDER = np.array([7, 3, 9, 1, 5, 0], dtype=np.int64)


def measured(shrinks: bool, begin: int = 1) -> OpenSamples:
    """Return samples that have all been measured: the cost of each follows from its place."""
    samples = OpenSamples(ORDER, begin, KnownCosts(10 if shrinks else 0, (None, None)), shrinks)
    samples.open(len(ORDER))
    for sample in samples.next_samples(len(ORDER), workers=1):
        sample.key, sample.cost, sample.nbytes = f"k{sample.index}", (sample.index, 2), 10
        samples.note_measured([sample])
    return samples


@pytest.mark.parametrize("shrinks", [False, True])
def test_costs_and_samples_are_those_that_were_measured(shrinks: bool) -> None:
    samples = measured(shrinks)
    assert samples.costs(1, 6).tolist() == [[int(place), 2] for place in ORDER[1:]]
    assert len(samples.seen.values()) == (0 if shrinks else 5)
    (found,) = samples.take([2])
    assert (found.ordinal, found.index, found.cost, found.nbytes) == (2, 9, (9, 2), 10)
    assert samples.unknown(6, 6) == 0


def test_samples_come_in_order_and_those_that_were_lost_first() -> None:
    samples = OpenSamples(ORDER, 0, KnownCosts(10, (None,)), shrinks=True)
    samples.open(3)
    assert (samples.to_probe, samples.unknown(0, 3), len(samples.seen)) == (3, 3, 0)
    first, second = samples.next_samples(2, workers=1)
    assert (first.ordinal, second.ordinal, samples.to_probe) == (0, 1, 1)
    samples.requeue(first)
    samples.open(5)
    assert (samples.to_probe, samples.unknown(0, 5)) == (4, 5)
    assert [each.ordinal for each in samples.next_samples(9, workers=2)] == [0, 2]
    assert [each.ordinal for each in samples.next_samples(9, workers=1)] == [3, 4]
    assert (samples.next_samples(9, workers=1), samples.to_probe) == ([], 0)


@pytest.mark.parametrize(
    "more",
    [{"failure": SampleFailure("broken")}, {"payload": Payload(b"", 3)}, {"crash_count": 1}],
    ids=str,
)
def test_what_is_known_besides_costs_is_kept(more: dict[str, object]) -> None:
    samples = OpenSamples(ORDER, 0, KnownCosts(10, (None,)), shrinks=True)
    samples.open(2)
    for sample in samples.next_samples(2, workers=1):
        sample.cost = (sample.ordinal + 4,)
        for name, value in more.items() if sample.ordinal else ():
            setattr(sample, name, value)
        samples.note_measured([sample])
    assert [each.ordinal for each in samples.seen.values()] == [1]
    assert samples.costs(0, 2).tolist() == [[4], [5]]
    assert samples.forget_before(2) == [sample]
    assert not samples.seen


@pytest.mark.parametrize("shrinks", [False, True])
def test_samples_that_a_step_takes_are_forgotten(shrinks: bool) -> None:
    samples = measured(shrinks)
    seen = {sample.ordinal: sample for sample in samples.seen.values()}
    taken = samples.take([4, 2])
    assert [sample.ordinal for sample in taken] == [4, 2]
    assert all(seen.get(sample.ordinal, sample) is sample for sample in taken)
    assert {sample.ordinal for sample in samples.seen.values()} == seen.keys() - {2, 4}
