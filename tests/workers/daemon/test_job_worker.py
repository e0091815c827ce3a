"""A worker of a pool, by what a balancer and a trainer at real sockets see of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import zmq

from counterpoise.balancer.job.messages import JobOpened, JoinPool, LeavePool
from counterpoise.balancer.protocol.messages import PeerRejected
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.plain import as_source
from tests.workers.daemon.played import START, PlayedBalancer, job_of, working


class Numbers:
    """Tensors of their own numbers."""

    def __init__(self, count: int, bad: frozenset[int] = frozenset()) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise SampleError(str(index), "it is torn")
        return {"x": torch.full((400,), index)}


def source_of(*arguments: Any) -> Any:
    return as_source(Numbers(*arguments), lambda sample: {"tokens": int(sample["x"][0]) % 5 + 1})


def numbers_in(batches: list[Any]) -> list[int]:
    return sorted(int(row[0]) for batch in batches for row in batch[0]["x"])


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as made:
        yield made


@pytest.fixture
def balancer(context) -> Iterator[PlayedBalancer]:
    made = PlayedBalancer(context, job_of())
    yield made
    made.close()


def test_a_trainer_gets_each_sample_once(balancer) -> None:
    with working(balancer, source_of(30)):
        assert numbers_in(balancer.deliver()) == [*range(30)]


def test_a_worker_that_serves_nowhere_sends_frames_through_the_balancer(balancer) -> None:
    balancer.relays = True
    with working(balancer, source_of(30), serves=False):
        assert numbers_in(balancer.deliver()) == [*range(30)]
    assert [told.address for told in balancer.of_kind(JoinPool)] == [""]


def test_a_balancer_that_is_started_again_gets_its_workers_back(balancer) -> None:
    with working(balancer, source_of(60)) as thread:
        balancer.trainer.begin(START)
        balancer.run(lambda: len(balancer.batches) >= 2)
        balancer.restart()
        balancer.run(lambda: balancer.trainer.is_at_end)
        assert numbers_in(balancer.batches) == [*range(60)]
        assert len(thread.opened) == 1


def test_a_worker_that_is_turned_away_ends_with_the_reason(balancer) -> None:
    with working(balancer, source_of(30)) as thread:
        balancer.run(lambda: bool(balancer.of_kind(JobOpened)))
        balancer.send(*balancer.workers, PeerRejected("other data"))
        balancer.run(lambda: not thread.is_alive())
        assert thread.why == "other data"


def test_a_worker_that_is_to_end_goes_when_nothing_that_it_keeps_is_needed(balancer) -> None:
    with working(balancer, source_of(30), drain_s=30.0) as thread:
        balancer.deliver()
        thread.stop.set()
        balancer.run(lambda: not thread.is_alive())
        assert thread.why == ""
        assert len(balancer.of_kind(LeavePool)) == 1
        assert not thread.workers[0].store._frames


def test_a_worker_that_is_to_end_waits_for_no_balancer_that_does_not_know_it(balancer) -> None:
    with working(balancer, source_of(60), drain_s=1e9) as thread:
        balancer.deliver()
        balancer.restart()
        thread.stop.set()
        balancer.run(lambda: not thread.is_alive())
        assert thread.why == ""
