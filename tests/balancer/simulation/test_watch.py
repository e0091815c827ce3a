"""What the watch of simulated clusters finds, and what it must not take for a fault."""

from typing import Any

import pytest

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.protocol.messages import RankHello, StartRun
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.payload_messages import Ack
from tests.balancer.coordinator.cluster import START, Cluster
from tests.balancer.coordinator.test_sharers import AHEAD, ONE, A, B, C, do, join, take
from tests.simulation.watch import Watch


class Watched(Cluster):
    """A cluster whose balancer is watched; broken: what the watch has found."""

    def __init__(self) -> None:
        super().__init__(ONE)
        self.watch = Watch(sharers=2)
        self.broken: list[str] = []

    def send(self, peer: bytes, *messages: Any, after_s: float = 0.0) -> Any:
        sent = []
        for message in messages:
            self.watch.received(self.coordinator, peer, message)
            for to, answer in super().send(peer, message, after_s=after_s):
                self.look_at(to, answer)
                sent.append((to, answer))
        return sent

    def look_at(self, peer: bytes, message: Any) -> None:
        if broken := self.watch.sent(self.coordinator, Send(peer, message)):
            self.broken.append(broken)


def started_by_two() -> Watched:
    cluster = Watched()
    for number, peer in enumerate((A, B)):
        join(cluster, peer, number)
    cluster.worker(count=20)
    for peer in (A, B):
        do(cluster, peer, StartRun(0, 0, START))
    return cluster


def test_a_late_message_of_a_process_that_went_on_is_no_fault() -> None:
    cluster = started_by_two()
    assert all(take(cluster, peer, step) for step in range(3) for peer in (A, B))
    # For one that comes late the run is planned again; then comes what A has sent twice.
    join(cluster, C, 2)
    do(cluster, C, StartRun(0, 0, START))
    assert all(take(cluster, C, step) for step in range(3))
    cluster.send(A, Ack(0, 0, 0, 0))
    assert take(cluster, B, 3)
    assert not cluster.broken


def test_what_a_process_has_had_counts_where_only_its_start_tells() -> None:
    cluster = started_by_two()
    assert take(cluster, A, 0)
    assert take(cluster, B, 0)
    cluster.lose(B, RankHello((0,), ""))
    join(cluster, B, 1)
    do(cluster, B, StartRun(0, 0, START, EpochPosition(4, 2, 2, 0, "")))
    assert all(take(cluster, A, step) for step in range(1, 4))
    assert not cluster.broken


def test_a_step_too_far_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = started_by_two()
    assert take(cluster, B, 0)
    monkeypatch.setattr(cluster.coordinator.sharers, "why_held_back", lambda *_: None)
    assert all(take(cluster, A, step) for step in range(AHEAD + 1))
    assert not cluster.broken
    assert take(cluster, A, AHEAD + 1)
    assert cluster.broken == ["step 3 was sent while b is in step 0"]
