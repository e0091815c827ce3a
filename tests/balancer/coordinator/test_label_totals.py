"""Label tokens that ranks count in their batches: the coordinator adds them up."""

from dataclasses import replace

from counterpoise.balancer.coordinator.machine import KEEPALIVE_S
from counterpoise.balancer.coordinator.peers.requests import LabelTotals
from counterpoise.balancer.coordinator.run_control import COUNTS_LOST_S
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    LabelCount,
    LabelTotal,
    Ping,
    Pong,
    RankBye,
    RankHello,
    RunFailed,
    StartRun,
)
from counterpoise.balancer.protocol.parts import COUNTED_STEPS, EpochPosition
from tests.balancer.coordinator.cluster import JOB, START, Cluster

COUNTING = replace(JOB, label_tokens="batch")


def started(*ranks: tuple[bytes, tuple[int, ...], int], job=COUNTING) -> Cluster:
    """A cluster at run 0, with a process (peer, its ranks, its number among sharers) each."""
    cluster = Cluster()
    for peer, played, sharer in ranks:
        cluster.send(peer, RankHello(played, to_json(job), sharer, 1, f"process {peer.decode()}"))
    cluster.worker()
    for peer, _, _ in ranks:
        cluster.send(peer, StartRun(0, 0, START))
    return cluster


TWO = (b"a", (0,), 0), (b"b", (1,), 0)


def test_all_who_have_counted_are_answered_once_all_ranks_have() -> None:
    cluster = started(*TWO)
    assert cluster.send(b"a", LabelCount(0, 0, 3, 5)) == []
    total = LabelTotal(0, 3, 12)
    assert cluster.send(b"b", LabelCount(0, 1, 3, 7)) == [(b"a", total), (b"b", total)]


def test_a_repeated_count_is_answered_again_and_to_nobody_else() -> None:
    cluster = started(*TWO)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    assert cluster.send(b"a", LabelCount(0, 0, 3, 5)) == [(b"a", LabelTotal(0, 3, 12))]


def test_who_leaves_when_all_have_counted_takes_no_total_along() -> None:
    cluster = started(*TWO)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    cluster.send(b"b", RankBye())
    assert (b"a", LabelTotal(0, 3, 12)) in cluster.send(b"a", LabelCount(0, 0, 3, 5))


def test_counts_go_with_the_process_that_is_lost() -> None:
    cluster = started(*TWO)
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    cluster.lose(b"b", Pong(""))
    assert cluster.send(b"a", LabelCount(0, 0, 3, 5)) == []


def test_one_process_that_plays_all_ranks_is_answered_after_the_last() -> None:
    cluster = started((b"a", (0, 1), 0))
    sent = cluster.send(b"a", LabelCount(0, 0, 1, 5), LabelCount(0, 1, 1, 6))
    assert sent == [(b"a", LabelTotal(0, 1, 11))]


def test_processes_that_share_a_rank_count_once_and_must_agree() -> None:
    cluster = started(*TWO, (b"c", (0,), 1))
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    assert (b"c", LabelTotal(0, 3, 12)) in cluster.send(b"c", LabelCount(0, 0, 3, 5))
    cluster.send(b"a", LabelCount(0, 0, 4, 5))
    (failed, *_) = [m for _, m in cluster.send(b"c", LabelCount(0, 0, 4, 6)) if m]
    assert isinstance(failed, RunFailed)
    assert "count 6 and 5 label tokens in its batches of step 4" in failed.reason


def test_who_is_waited_for_is_named_to_who_waits() -> None:
    cluster = started(*TWO)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    said = {to: m.waiting for to, m in cluster.send(b"a", Ping(1)) if isinstance(m, Pong)}
    assert said[b"a"] == "the label tokens of step 3 from rank 1 (process b)"
    (waiting,) = [m.waiting for _, m in cluster.send(b"b", Ping(1)) if isinstance(m, Pong)]
    assert "label tokens" not in waiting
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    (waiting,) = [m.waiting for _, m in cluster.send(b"a", Ping(2)) if isinstance(m, Pong)]
    assert "label tokens" not in waiting


def test_a_rank_that_never_sends_fails_nothing() -> None:
    cluster = started(*TWO)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    for _ in range(40):
        sent = cluster.tick(after_s=5.0)
        assert not [m for _, m in sent if isinstance(m, RunFailed)]
    assert (b"a", LabelTotal(0, 3, 12)) in cluster.send(b"b", LabelCount(0, 1, 3, 7))


HERE = EpochPosition(0, 0, 3, 0, "")
BEYOND_S = COUNTS_LOST_S + 2 * KEEPALIVE_S


def come_back(peer: bytes, rank: int, cluster: Cluster) -> None:
    """Introduce a rank again, to a balancer that was started after the run had begun."""
    cluster.send(peer, RankHello((rank,), to_json(COUNTING), 0, 1))
    cluster.send(peer, StartRun(0, 0, START, here=HERE))


def failures(cluster: Cluster, wait_s: float) -> list[str]:
    """Return what ranks are told has failed in some time."""
    sent = [each for _ in range(int(wait_s)) for each in cluster.tick(after_s=1.0)]
    return [m.reason for _, m in sent if isinstance(m, RunFailed)]


def test_counts_that_a_former_balancer_had_are_missed_after_a_time_if_they_stay_away() -> None:
    cluster = Cluster()
    cluster.worker()
    come_back(b"a", 0, cluster)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    assert not failures(cluster, COUNTS_LOST_S)
    (reason,) = set(failures(cluster, 2 * KEEPALIVE_S))
    assert "the label tokens of step 3, and ranks (1,) have not come back for 120 s" in reason


def test_a_rank_that_comes_back_in_time_and_counts_again_gets_the_total() -> None:
    cluster = Cluster()
    cluster.worker()
    come_back(b"a", 0, cluster)
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    assert not failures(cluster, COUNTS_LOST_S)
    come_back(b"b", 1, cluster)
    assert not failures(cluster, BEYOND_S)  # it may take its time to count
    total = LabelTotal(0, 3, 12)
    assert cluster.send(b"b", LabelCount(0, 1, 3, 7)) == [(b"a", total), (b"b", total)]


def test_a_rank_that_has_not_started_yet_may_take_any_time() -> None:
    cluster = Cluster()
    cluster.worker()
    cluster.send(b"a", RankHello((0,), to_json(COUNTING), 0, 1), StartRun(0, 0, START))
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    assert not failures(cluster, BEYOND_S)


def test_counts_of_ranks_of_others_and_of_jobs_that_count_otherwise_are_ignored() -> None:
    cluster = started(*TWO)
    cluster.send(b"a", LabelCount(0, 1, 3, 5), LabelCount(0, 0, 3, 5))
    assert cluster.send(b"b", LabelCount(0, 1, 3, 7))[0][1] == LabelTotal(0, 3, 12)
    other = started(*TWO, job=JOB)
    assert other.send(b"a", LabelCount(0, 0, 3, 5), LabelCount(0, 1, 3, 5)) == []
    assert not other.coordinator.labels._steps


def test_what_is_kept_of_a_process_has_a_bound() -> None:
    labels = LabelTotals()
    for step in range(1000):
        labels.add(b"a", LabelCount(0, 0, step, 1))
        assert labels.settle(b"a", LabelCount(0, 0, step, 1), 1, [b"a"])
    assert len(labels._steps) == COUNTED_STEPS
    labels.remove(b"a")
    assert not len(labels._steps)


def test_who_shares_a_rank_and_comes_last_gets_the_total_of_those_that_have_left() -> None:
    cluster = started(*TWO, (b"c", (0,), 1))
    cluster.send(b"a", LabelCount(0, 0, 3, 5))
    cluster.send(b"b", LabelCount(0, 1, 3, 7))
    cluster.send(b"a", RankBye())
    cluster.send(b"b", RankBye())
    assert (b"c", LabelTotal(0, 3, 12)) in cluster.send(b"c", LabelCount(0, 0, 3, 5))
