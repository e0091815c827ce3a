"""The peers' sessions: what they ask for, in which order they hand on, and their tables."""

import pytest
from msgspec import structs

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol import messages
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Bye,
    EpochEnd,
    PeerRejected,
    Ping,
    Pong,
    RunFailed,
    StartRun,
    UnknownPeer,
    Welcome,
    WorkersEnded,
)
from counterpoise.balancer.protocol.parts import EpochPosition, Ready, SampleRef, Weights
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    Batch,
    Lease,
    PayloadsFreed,
    RequestBatch,
    Revoke,
)
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.balancer.protocol.transitions import BEGIN, COORDINATOR, RANK, WORKER, Event
from counterpoise.balancer.protocol.worker_session import (
    WorkerSession,
)

START = EpochPosition(0, 0, 0, 0, "")
JOB = JobSpec(PlanConfig(2, 4, 2, ("tokens",), (None,)))


# --- the tables


@pytest.mark.parametrize(
    ("table", "handlers", "received"),
    [
        (COORDINATOR, Coordinator().handlers, messages.FROM_WORKER + messages.FROM_RANK),
        (WORKER, WorkerSession().handlers, messages.TO_WORKER),
        (RANK, RankSession((0,), "", 1).handlers, messages.TO_RANK),
    ],
)
def test_every_row_has_a_handler_and_every_message_a_row(table, handlers, received):
    own_events = {*Event, BEGIN}
    actions = {row.action for (_, event), row in table.items() if event != BEGIN}
    assert actions == set(handlers)
    events = {event for _, event in table}
    assert events - own_events == {kind.__name__ for kind in received}


@pytest.mark.parametrize(
    ("table", "start"), [(COORDINATOR, "absent"), (WORKER, "joining"), (RANK, "joining")]
)
def test_every_state_can_be_reached(table, start):
    states, new = set(), {start}
    while new:
        states |= new
        rows = [row for (state, _), row in table.items() if state in states]
        new = {after for row in rows for after in row.after.values()} - states
    assert {state for state, _ in table} <= states


# --- a worker


def lease(number, *ordinals, kind="decode"):
    return Lease(number, kind, 0, tuple(SampleRef(ordinal, ordinal) for ordinal in ordinals))


def tasks(session):
    found = []
    while lease_tasks := session.next_lease():
        found += [(task.lease, task.ref.ordinal) for task in lease_tasks]
    return found


def test_a_worker_works_on_its_leases_in_order_without_what_was_revoked():
    session = WorkerSession()
    assert session.handle(lease(1, 0)) is None
    assert session.dropped == 1
    assert session.handle(Welcome("job")) == Welcome("job")
    for number, ordinals in ((1, (4, 2)), (2, (7,)), (3, (5,))):
        session.handle(lease(number, *ordinals))
    session.handle(Revoke(2))
    session.handle(Revoke(99))
    assert tasks(session) == [(1, 4), (1, 2), (3, 5)]


def test_another_welcome_ends_the_work_of_the_job_before():
    session = WorkerSession()
    session.handle(Welcome("a"))
    session.handle(lease(1, 0))
    assert session.handle(Welcome("b")) == Welcome("b")
    assert tasks(session) == []


def test_a_forgotten_worker_says_hello_and_goes_on():
    session = WorkerSession()
    session.handle(Welcome("a"))
    session.handle(lease(1, 0))
    assert session.handle(UnknownPeer()) == UnknownPeer()
    assert tasks(session) == [(1, 0)]


def test_a_worker_ends_when_it_is_told():
    for last in (PeerRejected("why"), Bye()):
        session = WorkerSession()
        session.handle(Welcome("a"))
        session.handle(lease(1, 0))
        assert session.handle(last) == last
        assert session.next_lease() == []
        session.handle(lease(2, 0))
        assert session.next_lease() == []


# --- a rank


def take(session):
    """Return the next microbatch in order and what to send for it, None if it has not arrived."""
    arrival = session.peek()
    return None if arrival is None else (arrival, session.release(arrival))


def batch(rank, step, microbatch, microbatches=2, run=0, holes=()):
    weights = Weights(0, 0, 0, 0, 0, 0)
    return Batch(
        run, rank, step, microbatch, microbatches, weights, (), (), START, (), (), holes, ()
    )


def running(ranks=(0,), prefetch=4, at=START):
    session = RankSession(ranks, to_json(JOB), prefetch)
    assert session.begin(3, at) == [StartRun(0, 3, at, known=(at.step,) if at.microbatch else ())]
    return session


def place(message):
    return message.step, message.microbatch, message.rank


def test_a_rank_asks_ahead_as_far_as_it_knows_that_there_is_something():
    session = running()
    assert session.new_requests() == [RequestBatch(0, 0, 0, 0)]
    assert session.new_requests() == []
    session.handle(batch(0, 0, 0, microbatches=2))
    assert [place(ask) for ask in session.new_requests()] == [(0, 1, 0), (1, 0, 0)]


def test_what_is_freed_may_come_with_a_lease():
    session = WorkerSession()
    session.handle(Welcome("", 0))
    assert session.handle(structs.replace(lease(1, 7), freed=(3, 4))) == PayloadsFreed((3, 4))
    assert session.handle(PayloadsFreed((5,))) == PayloadsFreed((5,))
    assert session.handle(lease(2, 8)) is None
    assert [task.ref.ordinal for task in session.tasks] == [7, 8]


def test_over_a_new_connection_a_rank_says_who_it_is_and_asks_again():
    session = running(prefetch=2)
    (asked,) = session.new_requests()
    assert session.reattach() == [session.hello, asked]
    session.handle(batch(0, 0, 0))
    arrival, _ = take(session)
    asked = RequestBatch(0, 0, 0, 1), RequestBatch(0, 0, 1, 0)
    assert session.reattach() == [session.hello, Ack(0, 0, 0, 0), *asked]
    assert arrival.batch.step == 0


def test_when_workers_have_ended_a_rank_waits_for_others_to_be_ready():
    session = running()
    session.handle(Ready(20, "same"))
    assert session.end_workers(("host/1/0",)) == [WorkersEnded(("host/1/0",))]
    assert session.ready is None
    session.handle(Ready(8, "other"))
    assert session.ready == Ready(8, "other")


def test_that_workers_have_ended_is_repeated_until_it_was_read():
    session = running()
    session.end_workers(("host/1/0",))
    session.end_workers(("host/2/0",))
    ended = WorkersEnded(("host/1/0", "host/2/0"))
    assert session.reattach()[:2] == [session.hello, ended]
    session.ended = ()
    assert ended not in session.reattach()


def test_never_more_than_the_prefetch_is_asked_for_and_kept():
    session = running(prefetch=2)
    for step in range(6):
        session.new_requests()
        session.handle(batch(0, step, 0, microbatches=1))
    assert len(session._requested) + len(session._arrived) <= 2


@pytest.mark.parametrize(
    ("ranks", "prefetch", "microbatches", "asked"),
    [((0,), 2, 4, 8), ((0, 1), 1, 3, 6), ((0,), 2, 0, 1), ((0,), 300, 1, 300), ((0,), 4, 100, 256)],
)
def test_the_microbatches_of_so_many_steps_are_asked_for_ahead(
    ranks, prefetch, microbatches, asked
):
    session = RankSession(ranks, to_json(JOB), prefetch, microbatches)
    session.begin(0, START)
    session.handle(Ready(20, "same"))
    requests = session.new_requests()
    assert len(requests) == asked
    assert place(requests[0]) == (0, 0, ranks[0])


def test_batches_are_handed_on_in_order_whatever_order_they_come_in():
    session = running(ranks=(0, 1))
    taken = []
    session.new_requests()
    session.handle(batch(1, 0, 0))
    session.new_requests()
    for rank, step, microbatch in [(1, 0, 1), (0, 0, 1), (0, 0, 0), (0, 0, 0)]:
        session.handle(batch(rank, step, microbatch))
        session.new_requests()
    while (found := take(session)) is not None:
        arrival, told = found
        acks = [each for each in told if isinstance(each, Ack)]
        assert [place(ack) for ack in acks] == [place(arrival.batch)]
        taken.append(place(arrival.batch))
    assert taken == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]


def test_a_run_begins_inside_a_step_and_ends_where_it_is_said():
    session = running(at=EpochPosition(0, 0, 5, 1, ""))
    assert [place(ask) for ask in session.new_requests()] == [(5, 1, 0)]
    session.handle(batch(0, 5, 1))
    take(session)
    assert not session.at_end()
    session.new_requests()
    session.handle(EpochEnd(0, 6))
    assert session.at_end()
    assert session.new_requests() == []


def test_what_belongs_to_another_run_or_rank_is_not_taken():
    session = running()
    session.new_requests()
    session.begin(4, START)
    session.new_requests()
    for stale in (batch(0, 0, 0, run=0), batch(7, 0, 0, run=1), EpochEnd(0, 0)):
        session.handle(stale)
    assert take(session) is None
    assert not session.at_end()


def test_the_costs_of_a_run_are_told_to_a_balancer_that_was_restarted():
    session = RankSession((0,), to_json(JOB), 2)
    assert session.begin(0, START, costs="measured") == [StartRun(0, 0, START, costs="measured")]
    session.handle(UnknownPeer())
    told = [each for each in session.new_requests() if isinstance(each, StartRun)]
    assert [each.costs for each in told] == ["measured"]


def test_a_run_that_was_begun_is_known_by_its_position_and_costs():
    session = RankSession((0,), to_json(JOB), 2)
    assert not session.has_begun(0, START, "")
    session.begin(0, START, costs="measured")
    assert session.has_begun(0, START, "measured")
    assert not session.has_begun(0, START, "")
    assert not session.has_begun(1, START, "measured")


def test_what_is_unanswered_is_asked_for_again_with_a_ping():
    session = RankSession((0,), to_json(JOB), 2)
    assert session.unanswered() == [session.hello, Ping()]
    session.handle(Ready(3, "same"))
    session.begin(0, START)
    asked = session.new_requests()
    assert session.unanswered() == [Ping(), *asked]


def test_a_rank_that_comes_back_tells_the_holes_of_all_steps_that_it_has_some_of():
    session = running(prefetch=8)
    for step in range(3):
        session.new_requests()
        session.handle(batch(0, step, 0, microbatches=1 + step // 2, holes=(7 * step,)))
    take(session)
    take(session)
    session.handle(UnknownPeer())
    (hello, begun, *_) = session.new_requests()
    assert hello == session.hello
    assert (begun.at, begun.known, begun.holes) == (START, (0, 1, 2), (0, 7, 14))


def test_a_rank_keeps_the_holes_of_some_steps_only():
    session = running()
    for step in range(100):
        session.new_requests()
        session.handle(batch(0, step, 0, microbatches=1, holes=(step,)))
        take(session)
    session.handle(UnknownPeer())
    begun = next(message for message in session.new_requests() if isinstance(message, StartRun))
    assert begun.known == begun.holes == tuple(range(68, 100))


def test_it_is_known_up_to_which_ping_the_balancer_has_read():
    session = running()
    for number, answered in ((0, 0), (2, 2), (1, 2), (0, 2), (3, 3)):
        session.handle(Pong("x", number))
        assert session.answered == answered


@pytest.mark.parametrize("last", [RunFailed("why"), PeerRejected("why")])
def test_trouble_is_kept(last):
    session = running()
    session.handle(last)
    session.handle(Pong("x"))
    assert (session.state, session.failure) == ("failed", "why")
    session.handle(Bye())
    assert session.left
