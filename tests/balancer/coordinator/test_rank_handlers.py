"""The coordinator and its ranks where the simulation does not reach: who must go, who is told."""

from dataclasses import replace
from typing import Any

import pytest

from counterpoise.balancer.coordinator.rank_handlers import LATE_S
from counterpoise.balancer.coordinator.run_control import APART_S
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    Notice,
    PeerRejected,
    Ping,
    Pong,
    RankBye,
    RankHello,
    RunFailed,
    StartRun,
    Welcome,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import EpochPosition, Ready
from counterpoise.balancer.protocol.payload_messages import Ack, RequestBatch
from tests.balancer.coordinator.cluster import (
    JOB,
    OTHER,
    PLAN,
    START,
    Cluster,
    do_leases,
    kinds,
    started,
)


def test_a_rank_of_another_job_waits_until_the_first_is_known_to_be_gone():
    cluster = started()
    asked = cluster.rank(b"new", job=OTHER)
    assert kinds(asked, b"r0") == kinds(asked, b"r1") == ["Pong"]
    for peer in (b"r0", b"r1"):
        cluster.lose(peer, Pong(""))
    sent = cluster.tick()
    assert kinds(sent, b"new") == []
    assert kinds(sent, b"w") == ["Welcome"]
    assert cluster.send(b"w", WorkerReady(7, "other", 1)) == [(b"new", Ready(7, "other"))]


def test_a_rank_of_another_job_is_refused_while_the_first_is_there():
    cluster = started()
    cluster.rank(b"new", job=OTHER)
    cluster.send(b"r1", Ping(), after_s=LATE_S + 0.1)
    ((_, refused),) = [pair for pair in cluster.tick() if pair[0] == b"new"]
    assert refused == PeerRejected(
        "this balancer serves another job: on_error: 'raise' here, 'skip' there"
    )


@pytest.mark.parametrize("is_admitted_before", [True, False])
def test_a_rank_that_waited_and_has_left_is_not_admitted_later(is_admitted_before):
    cluster = started()
    cluster.rank(b"new", job=OTHER)
    if is_admitted_before:
        for peer in (b"r0", b"r1"):
            cluster.lose(peer, Pong(""))
        cluster.rank(b"new", job=OTHER)
    cluster.send(b"new", RankBye())
    assert kinds(cluster.tick(), b"new") == []
    assert b"new" not in cluster.coordinator.ranks


def named(name):
    return RankHello((0,), to_json(JOB), name=name)


def contested():
    """A cluster at work, and another process that wants to play rank 0."""
    cluster = Cluster()
    cluster.send(b"r0", named("process 0 (host a, pid 1)"))
    cluster.rank(b"r1", (1,))
    cluster.worker()
    for peer in (b"r0", b"r1"):
        cluster.send(peer, StartRun(0, 0, START))
    sent = cluster.send(b"new", named("process 0 (host b, pid 2)"))
    assert kinds(sent, b"new") == []
    return cluster


def test_a_newcomer_is_refused_with_both_addresses_and_the_first_goes_on():
    cluster = contested()
    run = cluster.coordinator.run
    cluster.send(b"r0", RequestBatch(0, 0, 0, 0), after_s=LATE_S + 0.1)
    told = dict(each for each in cluster.tick() if each[0] in (b"new", b"r0"))
    assert "host a, pid 1) plays rank 0 of this job already" in told[b"new"].reason
    assert "the newcomer is process 0 (host b, pid 2)" in told[b"new"].reason
    assert isinstance(told[b"new"], PeerRejected)
    assert told[b"r0"] == Notice(told[b"new"].reason)
    assert cluster.coordinator.run is run is not None


def test_what_comes_late_of_the_first_does_not_keep_a_newcomer_out():
    cluster = contested()
    cluster.send(b"r0", Ping(), after_s=LATE_S / 2)
    assert kinds(cluster.tick(LATE_S), b"r0") == ["Pong"]  # is it there?
    cluster.lose(b"r0", Pong(""))
    cluster.tick(0.1)
    assert b"new" in cluster.coordinator.ranks
    assert b"r0" not in cluster.coordinator.ranks


def test_a_first_that_only_trains_is_not_replaced_while_its_connection_lives():
    cluster = contested()
    for _ in range(34):
        cluster.send(b"new", named("process 0 (host b, pid 2)"))  # it asks again
        assert "PeerRejected" not in kinds(cluster.tick(1.0), b"new")
    assert "PeerRejected" in kinds(cluster.tick(2.0), b"new")
    assert b"r0" in cluster.coordinator.ranks


def succeed(cluster, old, new, rank):
    """Let a process play the rank of one that has gone."""
    cluster.rank(new, (rank,))
    cluster.lose(old, Pong(""))
    return cluster.tick(0.1)


def test_ranks_that_start_anew_end_the_run_of_those_before():
    cluster = started()
    succeed(cluster, b"r1", b"s1", 1)
    succeed(cluster, b"r0", b"s0", 0)
    for peer in (b"s1", b"s0"):
        cluster.send(peer, StartRun(0, 0, START))
    run: Any = cluster.coordinator.run
    assert run.number == 0
    assert kinds(cluster.send(b"r1", RequestBatch(0, 1, 0, 0)), b"r1") == ["UnknownPeer"]
    assert kinds(cluster.rank(b"r1", (1,)), b"r1") == []
    cluster.send(b"s1", Ping(), after_s=LATE_S + 0.1)
    assert kinds(cluster.tick(), b"r1") == ["PeerRejected"]


def test_a_rank_that_was_not_in_a_former_launch_goes_on():
    """The last words of rank 1's former life come after the new rank 0's first."""
    cluster = started(ranks=((1,),))
    cluster.rank(b"s0", (0,))
    cluster.send(b"s0", StartRun(0, 0, START))
    succeed(cluster, b"r0", b"s1", 1)
    cluster.send(b"s1", StartRun(0, 0, START))
    assert cluster.coordinator.run.number == 0
    assert RunFailed not in [type(message) for _, message in cluster.tick(2 * APART_S)]


def test_a_rank_that_goes_on_alone_is_told_when_another_was_started_anew():
    cluster = started()
    succeed(cluster, b"r1", b"s1", 1)
    cluster.send(b"s1", StartRun(0, 0, EpochPosition(8, 2, 2, 0, "")))
    assert "RunFailed" not in kinds(cluster.tick(APART_S - 0.1), b"r0")
    assert "RunFailed" in kinds(cluster.tick(0.2), b"r0")


def test_what_others_had_of_a_run_that_starts_again_for_one_behind_is_kept():
    """After a restart of the balancer the rank that is ahead comes first."""
    cluster = Cluster()
    cluster.rank(b"r1", (1,), OTHER)
    sent = cluster.worker()
    do_leases(
        cluster, sent + cluster.send(b"r1", StartRun(0, 0, START, EpochPosition(8, 2, 2, 0, "")))
    )
    had = cluster.send(b"r1", RequestBatch(0, 1, 2, 0))
    assert kinds(had, b"r1") == ["Batch"]
    cluster.send(b"r1", Ack(0, 1, 2, 0))
    cluster.rank(b"r0", (0,), OTHER)
    cluster.send(b"r0", StartRun(0, 0, START, EpochPosition(4, 1, 1, 0, "")))
    run = cluster.coordinator.run
    assert run.begin.start.step == 1
    assert run.delivery.progress.needed((1,)) == (2, 1)
    assert run.delivery.progress.needed((0,)) == (1, 0)
    assert 2 in run.delivery.known_holes()[0]


def test_ranks_of_one_launch_that_seem_to_be_of_two_may_be_in_different_epochs():
    """After two quick restarts rank 1 comes before the last life of rank 0 is known to be gone."""
    cluster = started(ranks=((0,),))
    cluster.rank(b"s1", (1,))
    cluster.send(b"s1", StartRun(0, 0, START))
    succeed(cluster, b"r0", b"s0", 0)
    cluster.send(b"s0", StartRun(0, 0, START))
    assert kinds(cluster.send(b"s0", StartRun(1, 1, START)), b"s1") == []
    assert cluster.coordinator.run.number == 0
    cluster.send(b"s1", StartRun(1, 1, START))
    assert cluster.coordinator.run.number == 1


def test_a_rank_whose_next_begin_was_lost_is_asked_where_it_is():
    cluster = started()
    cluster.send(b"r0", StartRun(1, 1, START))
    assert kinds(cluster.send(b"r1", RequestBatch(1, 1, 0, 0)), b"r1") == ["UnknownPeer"]
    cluster.rank(b"r1", (1,))
    cluster.send(b"r1", StartRun(1, 1, START, START))
    assert cluster.coordinator.run.number == 1


@pytest.mark.parametrize(
    "hello", [RankHello((), to_json(JOB)), RankHello((2,), to_json(JOB)), RankHello((0,), "{}"),
              RankHello((-1,), to_json(JOB)), RankHello((0,), "[" * 100_000)]
)  # fmt: skip
def test_a_hello_that_cannot_be_is_refused(hello):
    cluster = Cluster()
    ((_, refused),) = cluster.send(b"r", hello)
    assert isinstance(refused, PeerRejected)


def test_an_ordering_that_the_balancer_cannot_do_is_refused():
    plan = replace(PLAN, ordering="two_opt")
    ((_, refused),) = Cluster().rank(b"r", job=replace(JOB, plan=plan))
    assert "ordering 'two_opt'" in refused.reason


def test_ranks_that_stay_at_different_places_are_told():
    cluster = started(ranks=((0,),))
    cluster.rank(b"r1", (1,))
    assert RunFailed not in [
        type(message) for _, message in cluster.send(b"r1", StartRun(0, 1, START))
    ]
    assert cluster.coordinator.run is None
    assert RunFailed not in [type(message) for _, message in cluster.tick(APART_S)]
    sent = cluster.tick(0.1)
    for peer in (b"r0", b"r1"):
        (told,) = [message for to, message in sent if to == peer]
        assert "not at the same position" in told.reason


def test_a_rank_of_a_former_launch_at_another_place_is_looked_for_and_forgotten():
    cluster = started(ranks=((1,),))  # it says so to a balancer that has not seen rank 0 before
    cluster.rank(b"new 0", (0,))
    cluster.send(b"new 0", StartRun(0, 0, EpochPosition(8, 2, 2, 0, "")))
    ((_, asked),) = [each for each in cluster.tick(1.5) if each[0] == b"r0"]
    cluster.lose(b"r0", asked)
    assert cluster.coordinator.run.begin.at == EpochPosition(8, 2, 2, 0, "")
    cluster.rank(b"new 1", (1,))
    cluster.send(b"new 1", StartRun(0, 0, EpochPosition(8, 2, 2, 0, "")))
    assert RunFailed not in [type(message) for _, message in cluster.tick(2 * APART_S)]


def test_a_position_beyond_the_data_is_refused():
    cluster = Cluster()
    cluster.rank(b"r")
    cluster.worker()
    sent = cluster.send(b"r", StartRun(0, 0, EpochPosition(21, 5, 5, 0, "")))
    assert "the ledger is at sample 21, but the data set has 20" in sent[0][1].reason
    assert kinds(cluster.send(b"r", StartRun(1, 0, START)), b"w") == ["Lease"]


@pytest.mark.parametrize("first", [b"r0", b"r1"])
def test_what_a_rank_was_given_is_not_decoded_for_a_restarted_balancer(first):
    begins: dict[bytes, list[Any]] = {
        b"r0": [StartRun(0, 0, START)],
        b"r1": [StartRun(0, 0, START, EpochPosition(0, 0, 0, 1, ""), (2,), (0,)), Ack(0, 1, 0, 0)],
    }
    cluster = Cluster()
    for peer, ranks in ((b"r0", (0,)), (b"r1", (1,))):
        cluster.rank(peer, ranks, job=OTHER)
    cluster.worker()
    for peer in sorted(begins, key=lambda peer: peer != first):
        cluster.send(peer, *begins[peer])
    run = cluster.coordinator.run
    while not run.delivery.steps:
        cluster.probe_all(b"w")
    (had,) = run.delivery.steps[0].ranks[1][0].samples
    decoding = {
        o for held in run.leases.of_worker(b"w") if held.kind == "decode" for o in held.samples
    }
    assert decoding
    assert not decoding & {2, had.ordinal}


def test_a_rank_cannot_ask_or_acknowledge_for_another():
    cluster = started()
    cluster.send(b"r0", RequestBatch(0, 1, 0, 0), Ack(0, 1, 0, 0), Ack(0, -1, 0, 0))
    assert cluster.coordinator.requests.nearest_of(b"r0", 0) is None


def test_a_rank_is_told_now_and_then_that_the_balancer_is_there():
    cluster = started()
    assert kinds(cluster.tick(10.5), b"r0") == ["Pong"]
    assert kinds(cluster.send(b"x", Ping()), b"x") == ["Pong"]


def test_all_ranks_are_told_when_the_balancer_is_stopped():
    cluster = started()
    told = [send.peer for send in cluster.coordinator.stop()]
    assert sorted(told) == [b"r0", b"r1"]


def test_a_job_is_given_to_workers_whenever_they_come():
    cluster = Cluster()
    hello = WorkerHello("w", 0, "host", 0)
    assert cluster.send(b"w", hello) == []
    assert cluster.rank(b"r") == [(b"w", Welcome(to_json(JOB)))]
    assert cluster.send(b"v", WorkerHello("v", 0, "host", 0)) == [(b"v", Welcome(to_json(JOB)))]


COSTS = '{"schedule":"1f1b","placement":[0],"passes":{"F":[{"per_thousand":{"tokens":%d}}]}}'
ORDERED = replace(JOB, plan=replace(PLAN, ordering="two_opt", pipeline=COSTS % 5))


def ordered_by(costs, run=0):
    return StartRun(run, 0, START, costs=costs)


def test_a_run_is_planned_by_the_costs_that_its_ranks_have_measured():
    cluster, plans = Cluster(), []
    make = cluster.coordinator.plan_with

    def plan_with(plan):
        plans.append(plan.pipeline)
        return make(plan)

    cluster.coordinator.plan_with = plan_with
    for peer, rank in ((b"r0", 0), (b"r1", 1)):
        cluster.rank(peer, (rank,), ORDERED)
    cluster.worker()
    plans.clear()
    for run, costs in enumerate(("", COSTS % 7, "")):
        for peer in (b"r0", b"r1"):
            cluster.send(peer, ordered_by(costs, run))
        assert cluster.coordinator.run.number == run
    assert plans == [COSTS % 5, COSTS % 7, COSTS % 5]


def test_ranks_that_go_by_different_costs_are_told():
    cluster = Cluster()
    for peer, rank in ((b"r0", 0), (b"r1", 1)):
        cluster.rank(peer, (rank,), ORDERED)
    cluster.worker()
    cluster.send(b"r0", ordered_by(""))
    cluster.send(b"r1", ordered_by(COSTS % 7))
    assert cluster.coordinator.run is None
    cluster.tick(APART_S)
    sent = cluster.tick(0.1)
    assert {to for to, _ in sent} == {b"r0", b"r1"}
    assert all("go by different costs of their pipeline" in told.reason for _, told in sent)


@pytest.mark.parametrize("costs", ["[", COSTS.replace("tokens", "frames") % 3])
def test_costs_that_cannot_be_gone_by_fail_the_run(costs):
    cluster = Cluster()
    cluster.rank(b"r", (0, 1), ORDERED)
    cluster.worker()
    sent = cluster.send(b"r", ordered_by(costs))
    assert [type(message) for _, message in sent] == [RunFailed]
    assert "the costs that a pipeline has measured" in sent[0][1].reason
    # Another run may go by others.
    cluster.send(b"r", ordered_by("", run=1))
    assert cluster.coordinator.run.number == 1
