"""Processes that share a rank: each gets every microbatch, from one decode, at its own pace."""

from dataclasses import replace
from typing import Any

from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    Bye,
    Ping,
    Pong,
    RankBye,
    RankHello,
    RunFailed,
    StartRun,
    UnknownPeer,
)
from counterpoise.balancer.protocol.payload_messages import Ack, Batch, Lease, RequestBatch
from tests.balancer.coordinator.cluster import JOB, PLAN, START, Cluster, do_leases

# One rank, one microbatch of two samples in each step.
ONE = replace(JOB, plan=replace(PLAN, ranks=1, samples_per_step=2, accumulate=1))
# Two ranks.
TWO = replace(ONE, plan=replace(PLAN, accumulate=1))
A, B, C = b"a", b"b", b"c"
AHEAD = 2


def join(cluster: Cluster, peer: bytes, sharer: int, ranks: Any = (0,)) -> Any:
    return cluster.send(peer, RankHello(ranks, to_json(ONE), sharer, AHEAD, f"process {sharer}"))


def do(cluster: Cluster, peer: bytes, *messages: Any) -> Any:
    """Send messages, and let the worker do what it is given then; return what all are sent."""
    sent = cluster.send(peer, *messages)
    return sent + do_leases(cluster, sent)


def started(*peers: bytes) -> tuple[Cluster, Any]:
    """Return a cluster whose processes share rank 0 and have started; all decoded so far."""
    cluster = Cluster(ONE)
    for number, peer in enumerate(peers):
        join(cluster, peer, number)
    cluster.worker(count=20)
    return cluster, [each for peer in peers for each in do(cluster, peer, StartRun(0, 0, START))]


def ask(cluster: Cluster, peer: bytes, step: int) -> list[int]:
    """Ask for a microbatch; return the ordinals that the peer is sent."""
    sent = do(cluster, peer, RequestBatch(0, 0, step, 0))
    return [o.ordinal for to, m in sent if to == peer and isinstance(m, Batch) for o in m.items]


def take(cluster: Cluster, peer: bytes, step: int) -> list[int]:
    """Take a microbatch and acknowledge it."""
    got = ask(cluster, peer, step)
    do(cluster, peer, Ack(0, 0, step, 0))
    return got


def test_each_gets_every_microbatch_and_it_is_decoded_once() -> None:
    cluster, _ = started(A, B)
    assert [take(cluster, A, step) for step in range(3)] == [[0, 1], [2, 3], []]
    assert [take(cluster, B, step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_memory_is_freed_when_the_last_has_acknowledged() -> None:
    cluster, _ = started(A, B)
    run = cluster.coordinator.run
    assert run is not None
    assert ask(cluster, A, 0) == [0, 1]
    cluster.send(A, Ack(0, 0, 0, 0))
    assert 0 in run.delivery.steps
    assert ask(cluster, B, 0) == [0, 1]
    cluster.send(B, Ack(0, 0, 0, 0))
    assert 0 not in run.delivery.steps


def test_a_payload_counts_as_sent_only_when_all_have_been_sent_it() -> None:
    cluster, _ = started(A, B)
    run = cluster.coordinator.run
    assert run is not None
    found = []
    for peer in (A, B):
        ask(cluster, peer, 0)
        found.append([sample.is_sent for sample in run.delivery.steps[0].samples()])
    assert found == [[False, False], [True, True]]


def test_the_faster_waits_when_it_is_as_far_ahead_as_it_prefetches() -> None:
    cluster, _ = started(A, B)
    for step in range(AHEAD):
        assert take(cluster, A, step)
    assert ask(cluster, A, AHEAD) == []
    sent = cluster.send(A, Ping())
    (pong,) = [message for to, message in sent if to == A and isinstance(message, Pong)]
    assert pong.waiting == "process 1, which shares this rank and has not come further than step 0"
    sent = do(cluster, B, RequestBatch(0, 0, 0, 0), Ack(0, 0, 0, 0))
    assert [m.step for to, m in sent if to == A and isinstance(m, Batch)] == [AHEAD]


def test_one_that_joins_later_gets_the_steps_before() -> None:
    cluster, _ = started(A)
    assert [take(cluster, A, step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]
    join(cluster, B, 1)
    do(cluster, B, StartRun(0, 0, START))
    assert [take(cluster, B, step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert take(cluster, A, 3) == take(cluster, B, 3) == [6, 7]


def test_one_that_plays_two_ranks_and_joins_later_gets_what_one_of_them_has_had() -> None:
    cluster = Cluster(TWO)
    for peer, ranks, sharer in ((A, (0,), 0), (B, (1,), 0)):
        cluster.send(peer, RankHello(ranks, to_json(TWO), sharer, AHEAD, f"process {sharer}"))
    cluster.worker(count=20)
    for peer in (A, B):
        do(cluster, peer, StartRun(0, 0, START))
    had = take(cluster, A, 0)  # and rank 1 has taken nothing yet
    assert had
    cluster.send(C, RankHello((0, 1), to_json(TWO), 1, AHEAD, "process 1"))
    do(cluster, C, StartRun(0, 0, START))
    assert take(cluster, C, 0) == had


def test_one_that_has_only_said_hello_holds_up_nobody() -> None:
    cluster, _ = started(A)
    join(cluster, B, 1)
    assert all(take(cluster, A, step) for step in range(6))


def test_one_that_leaves_holds_up_nobody() -> None:
    cluster, _ = started(A, B)
    assert take(cluster, B, 0)
    cluster.send(B, RankBye())
    assert all(take(cluster, A, step) for step in range(6))


def test_the_next_run_starts_when_all_have_started_it() -> None:
    cluster, _ = started(A, B)
    cluster.send(A, StartRun(1, 1, START))
    assert cluster.coordinator.run is not None
    assert cluster.coordinator.run.number == 0
    assert take(cluster, B, 0) == [0, 1]
    cluster.send(B, StartRun(1, 1, START))
    assert cluster.coordinator.run.number == 1


def test_only_the_one_in_its_seat_is_in_the_way_of_a_process() -> None:
    cluster, _ = started(A, B)
    join(cluster, C, 1)
    assert C not in cluster.coordinator.ranks
    cluster.lose(B, Pong(""))
    cluster.tick(0.1)
    assert cluster.coordinator.ranks.keys() == {A, C}


def units() -> Cluster:
    """Return a cluster of ranks 0 and 1 (A and B), and C, an encoder that works for both."""
    cluster = Cluster(TWO)
    for peer, ranks, sharer in ((A, (0,), 0), (B, (1,), 0), (C, (0, 1), 1)):
        cluster.send(peer, RankHello(ranks, to_json(TWO), sharer, AHEAD, f"process {peer!r}"))
    cluster.worker(count=20)
    for peer in (A, B, C):
        do(cluster, peer, StartRun(0, 0, START))
    return cluster


def sent_to(peer: bytes, sent: Any) -> list[int]:
    return [o.ordinal for to, m in sent if to == peer and isinstance(m, Batch) for o in m.items]


def take_of(cluster: Cluster, peer: bytes, rank: int, step: int) -> list[int]:
    got = sent_to(peer, do(cluster, peer, RequestBatch(0, rank, step, 0)))
    do(cluster, peer, Ack(0, rank, step, 0))
    return got


def test_one_that_works_for_several_ranks_gets_the_batches_of_each() -> None:
    cluster = units()
    mine = [(take_of(cluster, A, 0, step), take_of(cluster, B, 1, step)) for step in range(AHEAD)]
    theirs = [tuple(take_of(cluster, C, rank, step) for rank in (0, 1)) for step in range(AHEAD)]
    assert mine == theirs
    assert sorted(o for step in mine for rank in step for o in rank) == list(range(4 * AHEAD))
    run = cluster.coordinator.run
    assert run is not None
    assert not {0, 1} & run.delivery.steps.keys()


def test_one_that_works_for_several_ranks_holds_up_each() -> None:
    cluster = units()
    for step in range(AHEAD):
        assert take_of(cluster, A, 0, step)
        assert take_of(cluster, B, 1, step)
    for peer, rank in ((A, 0), (B, 1)):
        assert not sent_to(peer, do(cluster, peer, RequestBatch(0, rank, AHEAD, 0)))
    sent = do(cluster, C, RequestBatch(0, 0, 0, 0), Ack(0, 0, 0, 0))
    assert sent_to(A, sent)
    assert not sent_to(B, sent)
    assert sent_to(B, do(cluster, C, RankBye()))


# --- death


def lost(cluster: Cluster, for_s: float, is_reachable: bool = False) -> list[RunFailed]:
    """Let B be lost for some time, and answer probes; return the failures that A is told."""
    failures, left_s = [], for_s
    sent = cluster.lose(B, Bye())
    while True:
        failures += [message for to, message in sent if to == A and isinstance(message, RunFailed)]
        probes = [to for to, message in sent if isinstance(message, UnknownPeer)]
        assert set(probes) <= {B}
        if probes and not is_reachable:
            cluster.lose(B, UnknownPeer())
        if left_s <= 0:
            return failures
        left_s -= 0.5
        sent = cluster.tick(0.5)


def test_a_lost_process_fails_the_others_by_name_within_the_heartbeat_timeout() -> None:
    cluster, _ = started(A, B)
    assert not lost(cluster, 4.0)
    (failure,) = lost(cluster, 3.0)
    assert failure.reason.startswith(
        "process 1, which shares data-parallel rank 0 with others, has"
    )


def test_a_lost_process_holds_its_place_and_may_come_back() -> None:
    cluster, _ = started(A, B)
    assert not lost(cluster, 3.0)
    assert [bool(take(cluster, A, step)) for step in range(AHEAD + 1)] == [True] * AHEAD + [False]
    join(cluster, B, 1)
    assert not any(isinstance(m, RunFailed) for _ in range(20) for _, m in cluster.tick(0.5))
    do(cluster, B, StartRun(0, 0, START))
    assert take(cluster, B, 0) == [0, 1]


def test_one_that_trains_and_can_be_reached_again_is_not_lost() -> None:
    cluster, _ = started(A, B)
    assert not lost(cluster, 30.0, is_reachable=True)


def test_who_is_left_of_a_later_launch_is_not_failed_by_the_loss_of_a_former() -> None:
    cluster, _ = started(A, B)
    assert not lost(cluster, 1.0)
    join(cluster, C, 0)  # in the place of A: all of the former launch are gone
    cluster.lose(A, Pong(""))
    cluster.tick(0.1)
    cluster.send(C, StartRun(0, 0, START))
    assert not any(
        isinstance(m, RunFailed) for _ in range(20) for to, m in cluster.tick(0.5) if to == C
    )


def test_processes_that_share_a_rank_are_sent_something_every_second() -> None:
    cluster, _ = started(A, B)
    sent = cluster.tick(1.5)
    assert {to for to, message in sent if isinstance(message, Pong)} == {A, B}
    alone, _ = started(A)
    assert not [m for _, m in alone.tick(1.5) if isinstance(m, Pong)]


def test_no_work_is_leased_twice_for_a_second_process() -> None:
    cluster, _ = started(A, B)
    take(cluster, A, 0)
    take(cluster, B, 0)
    sent = cluster.send(B, RequestBatch(0, 0, 0, 0))
    assert not [message for _, message in sent if isinstance(message, Lease)]


def test_one_that_has_left_the_run_is_sent_nothing_more_of_it():
    """What it has asked for ahead would wait for those behind, and then be sent for nothing."""
    cluster, _ = started(A, B)
    for step in range(AHEAD):
        take(cluster, A, step)
    assert ask(cluster, A, AHEAD) == []
    do(cluster, A, StartRun(1, 1, START))
    late = do(cluster, A, RequestBatch(0, 0, AHEAD, 0))
    for step in range(AHEAD):
        late += do(cluster, B, RequestBatch(0, 0, step, 0))
        late += do(cluster, B, Ack(0, 0, step, 0))
    assert [message for to, message in late if to == A and isinstance(message, Batch)] == []
    assert take(cluster, B, AHEAD)
