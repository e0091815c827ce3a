"""Workers decode for few ranks, which connect to few workers; nobody waits for that."""

from itertools import pairwise

import pytest

from benchmarks.coordinator.driven import Driven
from counterpoise.balancer.coordinator.peers.records import WorkerPeer, WorkerPool
from counterpoise.balancer.coordinator.run import granting
from counterpoise.balancer.protocol.messages import Message, WorkerHello
from counterpoise.balancer.protocol.payload_messages import Lease

RANKS = 16


class Noting(Driven):
    """Ranks that note which workers decode for them, and their leases."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pairs: set[tuple[bytes, int]] = set()

    def answer(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Lease) and message.kind == "decode":
            run = self.coordinator.run
            assert run is not None
            lease = run.leases.of_worker(peer)[-1]
            self.pairs |= {(peer, sample.place[2]) for sample in lease.samples.values()}
        super().answer(peer, message)


def make_pool(count: int) -> tuple[WorkerPool, list[bytes], dict[bytes, int]]:
    """Return a pool of workers without leases, their names, and the numbers of their leases."""
    pool, names = WorkerPool(), [b"%d" % number for number in range(count)]
    for name in names:
        pool.add(WorkerPeer(name, WorkerHello(name.decode(), 0, "host", 0), 0.0, 0.0))
        pool.update(name, is_assignable=True)
    leases = dict.fromkeys(names, 0)
    assert pool.next_free(leases.__getitem__) == names[0]
    return pool, names, leases


def test_ranks_connect_to_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granting, "lease_samples", lambda least, *_: least)
    driven = Noting(ranks=64, workers=128, steps=3)
    driven.run()
    assert driven.delivered == 3 * driven.samples_per_step
    # Of 64 x 128 pairs; 1,440 where workers take what is next.
    print(len(driven.pairs))
    assert len(driven.pairs) < 500


@pytest.mark.parametrize("count", [3, 16, 17, 40])
def test_homes_are_spread_evenly_however_many_there_are(count: int) -> None:
    pool, names, _ = make_pool(count)
    homes = sorted(pool.home(name.decode(), 1_000_000) for name in names)
    gaps = [after - before for before, after in pairwise(homes)]
    gaps.append(1_000_000 + homes[0] - homes[-1])
    assert max(gaps) < 3 * min(gaps)


def test_a_worker_that_is_back_has_its_home_again() -> None:
    pool, names, leases = make_pool(5)
    homes = [pool.home(name.decode(), RANKS) for name in names]
    for number, name in enumerate(names):
        pool.remove(pool.named(name.decode())[0])
        again = name + b" again"
        leases[again] = 0
        pool.add(WorkerPeer(again, WorkerHello(name.decode(), 1, "host", 0), 0.0, 0.0))
        pool.update(again, is_assignable=True)
        assert pool.home(name.decode(), RANKS) == homes[number]
    assert sorted(pool.idle(leases.__getitem__)) == [name + b" again" for name in sorted(names)]
