"""Every row of the coordinator's table, with every outcome, leads to the state that it names."""

from collections.abc import Callable

import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.protocol.messages import (
    Bye,
    LabelCount,
    Ping,
    RankBye,
    SampleFailed,
    StartRun,
    WorkerBye,
    WorkerFailed,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
    WorkersEnded,
)
from counterpoise.balancer.protocol.parts import DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    DecodeDone,
    ProbeDone,
    PullFailed,
    RequestBatch,
)
from counterpoise.balancer.protocol.status_messages import GetStatus
from counterpoise.balancer.protocol.transitions import (
    ABSENT,
    COORDINATOR,
    R_ATTACHED,
    R_RUNNING,
    W_PREPARING,
    W_READY,
    W_WAITING,
    Event,
    Outcome,
)
from tests.balancer.coordinator.cluster import OTHER, START, Cluster

PEER = b"peer"
HELLO = WorkerHello("peer", 1, "host", 0)
READY = WorkerReady(20, "same")
Case = tuple[str, str, Outcome]


# --- the peer in each state


def bring_to(state: str) -> Cluster:
    """Return a cluster in which the peer is in a state."""
    cluster = Cluster()
    if state in (W_PREPARING, W_READY):
        cluster.rank(b"rank")
    if state in (W_WAITING, W_PREPARING, W_READY):
        cluster.send(PEER, HELLO)
    if state == W_READY:
        cluster.send(PEER, READY)
    if state in (R_ATTACHED, R_RUNNING):
        cluster.worker()
        cluster.rank(PEER, (0,))
        cluster.worker()
    if state == R_RUNNING:
        cluster.send(PEER, StartRun(0, 0, START))
    assert cluster.coordinator.state_of(PEER) == state
    return cluster


# --- what makes each event happen


def start_job(cluster: Cluster) -> None:
    cluster.rank(b"rank")


def end_job(cluster: Cluster) -> None:
    if cluster.coordinator.state_of(PEER) == W_WAITING:
        cluster.rank(b"rank")
        cluster.send(PEER, WorkerFailed("no such file"))
    cluster.send(b"rank", RankBye())


def time_out(cluster: Cluster) -> None:
    cluster.tick(11.0)


def replace_peer(cluster: Cluster) -> None:
    cluster.send(b"successor", WorkerHello("peer", 2, "host", 0))


def be_ended(cluster: Cluster) -> None:
    if cluster.coordinator.state_of(PEER) == W_WAITING:
        cluster.rank(b"rank")
        cluster.send(PEER, WorkerFailed("no such file"))
    cluster.send(b"rank", WorkersEnded(("peer", "another")))


def be_turned_away(cluster: Cluster) -> None:
    cluster.coordinator.apply(PEER, Event.TURNED_AWAY, "another file")


def send_rubbish(message: object) -> Callable[[Cluster], None]:
    def act(cluster: Cluster) -> None:
        cluster.send(b"rank", StartRun(0, 0, START))
        send(message, message, message)(cluster)

    return act


def fail_where_another_can(cluster: Cluster) -> None:
    cluster.worker(b"able")
    cluster.send(PEER, WorkerFailed("no such file"))


def send(*messages: object) -> Callable[[Cluster], None]:
    def act(cluster: Cluster) -> None:
        for message in messages:
            cluster.send(PEER, message)

    return act


def be_unreachable(cluster: Cluster) -> None:
    cluster.lose(PEER, Bye())


def join_with_job(cluster: Cluster) -> None:
    cluster.rank(b"rank")
    cluster.send(PEER, HELLO)


def join_again_with_job(cluster: Cluster) -> None:
    cluster.rank(b"rank")
    cluster.send(PEER, WorkerFailed("no such file"), WorkerHello("peer", 2, "host", 0))


def join_as_predecessor(cluster: Cluster) -> None:
    cluster.send(b"successor", WorkerHello("peer", 2, "host", 0))
    cluster.send(PEER, HELLO)


def join_as_predecessor_of_another(cluster: Cluster) -> None:
    cluster.send(b"successor", WorkerHello("other", 2, "host", 0))
    cluster.send(PEER, WorkerHello("other", 1, "host", 0))


def be_ready_with_other_data(cluster: Cluster) -> None:
    cluster.worker(b"first")
    ready = WorkerReady(21, "other")
    cluster.send(PEER, ready, ready)


def greet_with_other_job(cluster: Cluster) -> None:
    cluster.rank(b"rank")
    cluster.rank(PEER, job=OTHER)


def wait_until_first_is_gone(cluster: Cluster) -> None:
    greet_with_other_job(cluster)
    cluster.lose(b"rank", Bye())
    cluster.tick()


def wait_while_first_is_there(cluster: Cluster) -> None:
    greet_with_other_job(cluster)
    cluster.send(b"rank", Ping(), after_s=2.0)
    cluster.tick()


BY_EVENT: dict[str, Callable[[Cluster], None]] = {
    Event.JOB_STARTED: start_job,
    Event.JOB_ENDED: end_job,
    Event.HEARTBEAT_TIMEOUT: time_out,
    Event.UNREACHABLE: be_unreachable,
    Event.REPLACED: replace_peer,
    Event.ENDED: be_ended,
    Event.TURNED_AWAY: be_turned_away,
    "WorkerHello": send(HELLO),
    "WorkerReady": send(READY),
    "WorkerFailed": send(WorkerFailed("no such file")),
    "ProbeDone": send(ProbeDone(99, ())),
    "DecodeDone": send(DecodeDone(99, (DecodedItem(0, "k", (), b"", 0, 0),))),
    "SampleFailed": send(SampleFailed(99, 0, "k", "cut", False)),
    "WorkerBye": send(WorkerBye()),
    "WorkerHeartbeat": send(WorkerHeartbeat("peer", 1)),
    "RankHello": lambda cluster: cluster.rank(PEER, (0,)) and None,
    "StartRun": send(StartRun(0, 0, START)),
    "RequestBatch": send(RequestBatch(0, 0, 0, 0)),
    "Ack": send(Ack(0, 0, 0, 0)),
    "PullFailed": send(PullFailed(7, "no way there", False)),
    "LabelCount": send(LabelCount(0, 0, 0, 5)),
    "Ping": send(Ping()),
    "GetStatus": send(GetStatus(1)),
    "WorkersEnded": send(WorkersEnded(("peer",))),
    "RankBye": send(RankBye()),
}
BY_CASE: dict[Case, Callable[[Cluster], None]] = {
    (ABSENT, "WorkerHello", Outcome.JOB_SENT): join_with_job,
    (ABSENT, "WorkerHello", Outcome.REFUSED): join_as_predecessor,
    (W_WAITING, "WorkerHello", Outcome.NO_JOB): send(WorkerHello("peer", 2, "host", 0)),
    (W_WAITING, "WorkerHello", Outcome.JOB_SENT): join_again_with_job,
    (W_WAITING, "WorkerHello", Outcome.REFUSED): join_as_predecessor_of_another,
    (W_PREPARING, "WorkerReady", Outcome.REFUSED): be_ready_with_other_data,
    (W_PREPARING, "WorkerReady", Outcome.OUTDATED): send(WorkerReady(20, "same", 7)),
    (W_PREPARING, "WorkerFailed", Outcome.OUTDATED): send(WorkerFailed("no such file", 7)),
    (W_PREPARING, "WorkerFailed", Outcome.REFUSED): fail_where_another_can,
    (W_READY, "ProbeDone", Outcome.REFUSED): send_rubbish(ProbeDone(99, (Probed(0, "k", (), 0),))),
    (W_READY, "DecodeDone", Outcome.REFUSED): send_rubbish(
        DecodeDone(99, (DecodedItem(0, "k", (), b"", 0, 0),))
    ),
    (W_READY, "SampleFailed", Outcome.REFUSED): send_rubbish(SampleFailed(99, 0, "k", "c", False)),
    (ABSENT, "RankHello", Outcome.POSTPONED): greet_with_other_job,
    (ABSENT, "RankHello", Outcome.REFUSED): lambda cluster: cluster.rank(PEER, (9,)) and None,
    (ABSENT, Event.POSTPONED_HELLO, Outcome.ADMITTED): wait_until_first_is_gone,
    (ABSENT, Event.POSTPONED_HELLO, Outcome.REFUSED): wait_while_first_is_there,
    (R_ATTACHED, "RankHello", Outcome.REFUSED): lambda cluster: cluster.rank(PEER, (1,)) and None,
    (R_RUNNING, "RankHello", Outcome.REFUSED): lambda cluster: cluster.rank(PEER, (1,)) and None,
}
CASES = [
    (state, event, outcome) for (state, event), row in COORDINATOR.items() for outcome in row.after
]


# --- the facts


class Walked:
    """Records what happened to the peer: (state before, event, outcome, state after)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[str, str, Outcome, str]] = []
        original = Coordinator.apply

        def apply(
            coordinator: Coordinator, peer: bytes, event: str, content: object = None
        ) -> bool:
            if peer != PEER:
                return original(coordinator, peer, event, content)
            before = coordinator.state_of(peer)
            outcomes = []
            row = COORDINATOR.get((before, event))
            if row is not None:
                handler = coordinator.handlers[row.action]

                def recorded(peer: bytes, content: object) -> Outcome | None:
                    outcome: Outcome | None = handler(peer, content)
                    outcomes.append(outcome)
                    return outcome

                coordinator.handlers[row.action] = recorded
            known = original(coordinator, peer, event, content)
            if row is not None:
                coordinator.handlers[row.action] = handler
                after = coordinator.state_of(peer)
                self.rows.append((before, event, outcomes[0] or Outcome.DONE, after))
            return known

        monkeypatch.setattr(Coordinator, "apply", apply)


@pytest.mark.parametrize("case", CASES, ids=["-".join(case).replace(" ", "-") for case in CASES])
def test_after_every_row_the_peer_is_where_the_table_says(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = Walked(monkeypatch)
    state, event, _ = case
    cluster = bring_to(state)
    BY_CASE.get(case, BY_EVENT.get(event, start_job))(cluster)
    assert case in [row[:3] for row in walked.rows]
    for before, happened, result, after in walked.rows:
        assert after == COORDINATOR[before, happened].after[result]
    states = cluster.coordinator
    assert (PEER in states.workers) == states.state_of(PEER).startswith("worker")
    assert (PEER in states.ranks) == states.state_of(PEER).startswith("rank")


def test_a_message_without_a_row_is_dropped_and_changes_no_state() -> None:
    cluster = bring_to(W_READY)
    cluster.send(PEER, StartRun(0, 0, START))
    assert cluster.coordinator.state_of(PEER) == W_READY
    assert cluster.coordinator.dropped == 1
