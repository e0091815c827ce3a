import random

import pytest

from counterpoise.balancer.coordinator.delivery.sample import Sample
from counterpoise.balancer.coordinator.run.leases import GrantedLease, LeaseIndex

WORKERS = (b"a", b"b", b"c")


@pytest.mark.parametrize("seed", range(20))
def test_an_index_answers_as_a_walk_over_all_leases(seed):
    draw = random.Random(seed)
    index, leases, noted = LeaseIndex(lambda worker: noted.append(worker)), {}, []
    for number in range(60):
        before = {worker: index.count(worker) for worker in WORKERS}
        noted.clear()
        kind = draw.random()
        if kind < 0.5:
            lease = GrantedLease(number, "decode", draw.choice(WORKERS), 0.0)
            chosen = draw.sample(range(12), draw.randrange(1, 4))
            lease.samples = {ordinal: Sample(ordinal, 0) for ordinal in chosen}
            index.add(lease)
            leases[number] = lease
        elif kind < 0.7:
            taken = draw.randrange(number + 1)
            assert index.pop(taken) is leases.pop(taken, None)
        elif kind < 0.9 and leases:
            lease = draw.choice(list(leases.values()))
            ordinal = draw.randrange(12)
            expected = lease.samples.get(ordinal)
            assert index.pop_sample(lease, ordinal) is expected
            if not lease.samples:
                del leases[lease.number]
        if kind > 0.9 and leases:
            lease = draw.choice(list(leases.values()))
            asked = [*lease.samples] if draw.random() < 0.5 else draw.sample(range(12), 3)
            those = {o: lease.samples[o] for o in asked if o in lease.samples}
            assert index.pop_samples(lease, asked) == those
            if not lease.samples:
                del leases[lease.number]
        check(index, leases)
        changed = {worker for worker in WORKERS if index.count(worker) != before[worker]}
        assert changed == set(noted)


def check(index, leases):
    assert list(index) == list(leases.values())
    assert len(index) == len(leases)
    for worker in WORKERS:
        own = [lease for lease in leases.values() if lease.worker == worker]
        assert index.of_worker(worker) == own
        assert index.count(worker) == len(own)
        assert index.first(worker) == (own[0].number if own else None)
    assert index.count_per_worker() == {w: index.count(w) for w in WORKERS if index.count(w)}
    for ordinal in range(12):
        holders = [lease for lease in leases.values() if ordinal in lease.samples]
        assert index.with_sample(ordinal) == holders
        assert index.holds_sample(ordinal) == bool(holders)


def test_a_cleared_index_is_empty():
    index = LeaseIndex()
    index.add(GrantedLease(1, "probe", b"a", 0.0, {3: Sample(3, 0)}))
    index.clear()
    check(index, {})
