"""A balancer that is asked to end fails nobody: ranks are told to wait for the one that follows."""

from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import BalancerStops, Pong, RankBye
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.rank_session import RankSession
from tests.balancer.coordinator.cluster import JOB, Cluster, kinds, started


def stopped(cluster: Cluster) -> list[tuple[bytes, object]]:
    return [(send.peer, send.message) for send in cluster.coordinator.stop()]


def test_ranks_are_told_to_wait_and_the_run_does_not_fail() -> None:
    cluster = started()
    sent = stopped(cluster)
    assert [kinds(sent, rank) for rank in (b"r0", b"r1")] == [["BalancerStops"]] * 2
    assert cluster.coordinator.failure is None


def test_a_rank_that_was_about_to_leave_may_go() -> None:
    cluster = started()
    assert cluster.send(b"r0", RankBye()) == []
    assert kinds(stopped(cluster), b"r0") == ["Bye"]


def test_a_rank_goes_on_when_it_hears_from_the_next_balancer() -> None:
    session = RankSession((0,), to_json(JOB), 2)
    session.begin(0, EpochPosition(0, 0, 0, 0, ""))
    session.handle(BalancerStops())
    assert (session.awaits_restart, session.failure, session.state) == (True, "", "running")
    session.handle(Pong("a worker to connect"))
    assert not session.awaits_restart
