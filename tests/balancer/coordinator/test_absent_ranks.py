"""Ranks that leave, stay away or come late: for whom the others wait, and for how long."""

import pytest

from counterpoise.balancer.protocol.messages import (
    Bye,
    EpochEnd,
    Ping,
    Pong,
    RankBye,
    RunFailed,
    StartRun,
)
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.payload_messages import Ack, RequestBatch
from tests.balancer.coordinator.cluster import START, Cluster, do_leases, kinds, started


def test_nobody_is_let_go_before_the_others_are_done():
    cluster = started()
    assert kinds(cluster.send(b"r0", RankBye()), b"r0") == []
    assert kinds(cluster.send(b"r1", RankBye()), b"r0") == ["Bye"]


def test_a_rank_at_its_end_does_not_hold_the_others():
    cluster = Cluster()
    for peer, ranks in ((b"r0", (0,)), (b"r1", (1,))):
        cluster.rank(peer, ranks)
    cluster.worker(count=20)
    for peer in (b"r0", b"r1"):
        cluster.send(peer, StartRun(0, 0, EpochPosition(20, 5, 5, 0, "")))
    assert cluster.send(b"r0", RankBye()) == []
    assert cluster.send(b"r1", RequestBatch(0, 1, 5, 0)) == [
        (b"r1", EpochEnd(0, 5)),
        (b"r0", Bye()),
    ]


def test_a_rank_that_has_not_taken_all_is_waited_for_though_it_knows_the_end():
    """What it was sent may lie in memory of a worker that ends, and be asked for again."""
    cluster = Cluster()
    for peer, ranks in ((b"r0", (0,)), (b"r1", (1,))):
        cluster.rank(peer, ranks)
    cluster.worker(count=4)
    sent = []
    for rank, peer in enumerate((b"r0", b"r1")):
        requests = [RequestBatch(0, rank, *place) for place in ((0, 0), (0, 1), (1, 0))]
        sent += cluster.send(peer, StartRun(0, 0, START), *requests)
    sent += do_leases(cluster, sent)
    for peer in (b"r0", b"r1"):
        assert kinds(sent, peer).count("Batch") == 2
        assert "EpochEnd" in kinds(sent, peer)
    cluster.send(b"r0", Ack(0, 0, 0, 0), Ack(0, 0, 0, 1))
    assert kinds(cluster.send(b"r0", RankBye()), b"r0") == []
    again = cluster.send(b"r1", RequestBatch(0, 1, 0, 1, lost=True))
    again += do_leases(cluster, again)
    assert (kinds(again, b"r1"), kinds(again, b"r0")) == (["Batch"], [])
    assert kinds(cluster.send(b"r1", Ack(0, 1, 0, 0)), b"r0") == []
    assert kinds(cluster.send(b"r1", Ack(0, 1, 0, 1)), b"r0") == ["Bye"]


def taken_by(cluster, peer, rank, after_s):
    """The steps that a rank is given, which waits so long when it is given nothing."""
    taken = []
    for step, microbatch in [(step, each) for step in range(5) for each in range(2)]:
        do_leases(cluster, cluster.send(peer, RequestBatch(0, rank, step, microbatch)))
        if step not in cluster.coordinator.run.delivery.steps:
            do_leases(cluster, cluster.tick(after_s))
        if step not in cluster.coordinator.run.delivery.steps:
            return taken
        cluster.send(peer, Ack(0, rank, step, microbatch))
        taken += [step] * (microbatch == 0)
    return taken


@pytest.mark.parametrize(("after_s", "steps"), [(4.9, [0, 1, 2]), (5.1, [0, 1, 2, 3, 4])])
def test_a_rank_that_is_not_there_holds_nobody_up_for_long(after_s, steps):
    cluster = Cluster()
    cluster.rank(b"r1", (1,))
    sent = cluster.worker()
    do_leases(cluster, sent + cluster.send(b"r1", StartRun(0, 0, START)))
    assert taken_by(cluster, b"r1", 1, after_s) == steps


def test_a_rank_that_was_not_waited_for_and_comes_is_given_all_it_wants():
    cluster = Cluster()
    cluster.rank(b"r1", (1,))
    sent = cluster.worker()
    do_leases(cluster, sent + cluster.send(b"r1", StartRun(0, 0, START)))
    taken_by(cluster, b"r1", 1, 5.1)
    cluster.rank(b"r0", (0,))
    sent = cluster.send(b"r0", StartRun(0, 0, START, EpochPosition(4, 1, 1, 0, "")))
    do_leases(cluster, sent)
    assert "Batch" in kinds(cluster.send(b"r0", RequestBatch(0, 0, 1, 0)), b"r0")
    assert cluster.coordinator.run.delivery.progress.needed((1,)) >= (4, 2)


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_rank_that_stays_away_from_the_next_epoch_is_named(goodbye):
    cluster = started()
    cluster.send(b"r1", RankBye()) if goodbye else cluster.lose(b"r1", Pong(""))
    cluster.send(b"r0", StartRun(1, 1, START))
    (status,) = [m for _, m in cluster.send(b"r0", Ping()) if isinstance(m, Pong)]
    assert status.waiting == "ranks (1,), which have gone"
    cluster.tick()
    assert "RunFailed" not in kinds(cluster.tick(119.0), b"r0")
    (trouble,) = [m for to, m in cluster.tick(2.0) if (to, type(m)) == (b"r0", RunFailed)]
    assert trouble.reason.startswith("ranks (1,) have gone, and the others have waited 120 s")


def test_a_rank_that_comes_back_in_time_begins_the_next_epoch():
    cluster = started()
    cluster.lose(b"r1", Pong(""))
    cluster.send(b"r0", StartRun(1, 1, START))
    for _ in range(3):
        cluster.tick(50.0)
        cluster.worker()
        cluster.rank(b"r1", (1,))
        cluster.send(b"r1", StartRun(0, 0, START))
        cluster.tick(50.0)
        cluster.lose(b"r1", Pong(""))
    cluster.rank(b"r1", (1,))
    cluster.send(b"r1", StartRun(1, 1, START))
    assert cluster.coordinator.failure is None
    assert cluster.coordinator.run.number == 1


def test_a_rank_that_is_there_may_take_its_time_between_epochs():
    cluster = started()
    cluster.send(b"r0", StartRun(1, 1, START))
    for _ in range(100):
        assert "RunFailed" not in kinds(cluster.tick(100.0), b"r0")
