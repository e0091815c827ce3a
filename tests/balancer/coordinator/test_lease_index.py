import random

import pytest

from counterpoise.balancer.coordinator.delivery.sample import Sample
from counterpoise.balancer.coordinator.run.leases import LeaseTable

WORKERS = (b"a", b"b", b"c")


@pytest.mark.parametrize("seed", range(20))
def test_a_table_answers_as_a_walk_over_all_leases(seed):
    draw = random.Random(seed)
    noted = []
    table, leases = LeaseTable(note_change=lambda worker: noted.append(worker)), {}
    for _ in range(60):
        before = {worker: table.count(worker) for worker in WORKERS}
        noted.clear()
        kind = draw.random()
        if kind < 0.5:
            chosen = draw.sample(range(12), draw.randrange(1, 4))
            samples = [Sample(ordinal, 0) for ordinal in chosen]
            lease = table.grant(draw.choice(WORKERS), "decode", samples, 0.0)
            leases[lease.number] = lease
        elif kind < 0.7:
            taken = draw.randrange(table.last + 1)
            assert table.pop(taken) is leases.pop(taken, None)
        elif leases:
            lease = draw.choice(list(leases.values()))
            asked = [*lease.samples] if draw.random() < 0.5 else draw.sample(range(12), 3)
            those = {o: lease.samples[o] for o in asked if o in lease.samples}
            found = table.complete(lease.worker, lease.number, asked, 0.0)
            assert found == ("decode", those)
            if not lease.samples:
                del leases[lease.number]
        check(table, leases)
        changed = {worker for worker in WORKERS if table.count(worker) != before[worker]}
        assert changed == set(noted)
    assert table.take_all() == list(leases.values())
    check(table, {})


def check(table, leases):
    assert list(table) == list(leases.values())
    assert len([*table]) == len(leases)
    for worker in WORKERS:
        own = [lease for lease in leases.values() if lease.worker == worker]
        assert table.of_worker(worker) == own
        assert table.count(worker) == len(own)
