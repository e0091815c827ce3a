"""A rank's requests and acknowledgements that share messages: what is said when, and to whom."""

from msgspec import structs

from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import (
    Ack,
    Batches,
    Ping,
    RankHello,
    RequestBatch,
    StartRun,
    UnknownPeer,
)
from counterpoise.balancer.protocol.payload_messages import MOST_REQUESTED, requests_in_ranges
from counterpoise.balancer.protocol.rank_session import Arrival, RankSession
from tests.balancer.protocol.test_sessions import JOB, START, batch, running


def test_an_acknowledgement_travels_with_the_requests_that_it_makes_room_for():
    session = running()
    session.new_requests()
    session.handle(batch(0, 0, 0))
    assert session.release(session.peek()) == [
        RequestBatch(0, 0, 0, 1, ack=Ack(0, 0, 0, 0)), RequestBatch(0, 0, 1, 0)
    ]  # fmt: skip


def steps_ahead(untold_bytes, ranks=(0,), microbatches=4, prefetch=2, nbytes=0):
    """A session with all microbatches that it may ask for, and what it asked."""
    session = RankSession(ranks, to_json(JOB), prefetch, microbatches, untold_bytes=untold_bytes)
    session.begin(0, START)
    asked = session.new_requests()
    for request in asked:
        for m in request.microbatches:
            session.handle(batch(request.rank, request.step, m, microbatches, nbytes=nbytes))
    return session, asked


def released(session, number):
    """What is sent when so many microbatches are released, for each."""
    return [session.release(session.peek()) for _ in range(number)]


def test_microbatches_of_a_step_are_asked_for_in_one_message_by_rank():
    _, asked = steps_ahead(0, ranks=(0, 3), microbatches=3, prefetch=1)
    assert asked == [RequestBatch(0, 0, 0, 0, 3), RequestBatch(0, 3, 0, 0, 3)]


def test_small_microbatches_are_acknowledged_together_at_the_end_of_their_step():
    session, asked = steps_ahead(untold_bytes=100)
    assert asked == [RequestBatch(0, 0, 0, 0, 4), RequestBatch(0, 0, 1, 0, 4)]
    together = RequestBatch(0, 0, 2, 0, 4, ack=Ack(0, 0, 0, 3))
    assert released(session, 4) == [[], [], [], [together]]


def test_nothing_is_untold_before_the_last_of_a_process_ranks_has_had_its_step():
    session, _ = steps_ahead(untold_bytes=100, ranks=(0, 1), microbatches=1, prefetch=4)
    first, second = RequestBatch(0, 0, 4, 0), RequestBatch(0, 1, 4, 0)
    acks = Ack(0, 0, 0, 0), Ack(0, 1, 0, 0)
    expected = [structs.replace(r, ack=a) for r, a in zip((first, second), acks, strict=True)]
    assert released(session, 2) == [[], expected]


def test_large_payloads_are_acknowledged_at_once():
    session, _ = steps_ahead(untold_bytes=100, nbytes=60)
    assert released(session, 2) == [[], [RequestBatch(0, 0, 2, 0, 2, ack=Ack(0, 0, 0, 1))]]


def test_payloads_in_frames_count_as_those_in_runs():
    session, _ = steps_ahead(untold_bytes=100, prefetch=4)
    session.handle(batch(0, 4, 0, 4))  # was not asked for
    session._arrived[0, 0, 0] = Arrival(batch(0, 0, 0, 4), (bytes(60), bytearray(40)))
    assert [type(each) for each in released(session, 1)[0]] == [RequestBatch]


def test_a_rank_asks_again_when_half_of_what_it_may_ask_for_is_released():
    session, _ = steps_ahead(untold_bytes=100, microbatches=8, prefetch=1)
    assert released(session, 4) == [
        [], [], [], [RequestBatch(0, 0, 1, 0, 4, ack=Ack(0, 0, 0, 3))]
    ]  # fmt: skip


def test_a_rank_that_waits_tells_what_is_untold():
    session, _ = steps_ahead(untold_bytes=100)
    assert released(session, 1) == [[]]
    assert session.new_requests() == [RequestBatch(0, 0, 2, 0, ack=Ack(0, 0, 0, 0))]
    assert session.new_requests() == []


def test_what_is_untold_is_told_over_a_new_connection_and_to_a_new_balancer():
    session, _ = steps_ahead(untold_bytes=100)
    released(session, 2)
    assert session.reattach() == [session.hello, Ack(0, 0, 0, 1)]
    assert session.unanswered() == [Ping(), Ack(0, 0, 0, 1)]
    session.handle(UnknownPeer())
    (told,) = released(session, 1)
    assert [type(each) for each in told] == [RankHello, StartRun, Ack, RequestBatch]
    assert (told[2], told[3].ack) == (Ack(0, 0, 0, 1), Ack(0, 0, 0, 2))


def test_nothing_of_a_run_is_told_in_the_next():
    session, _ = steps_ahead(untold_bytes=100)
    released(session, 2)
    session.begin(1, START)
    assert session.new_requests() == [RequestBatch(1, 0, 0, 0, 4), RequestBatch(1, 0, 1, 0, 4)]


def test_microbatches_that_come_together_are_taken_as_those_that_come_alone():
    session = RankSession((0,), to_json(JOB), 1, 3)
    session.begin(0, START)
    session.new_requests()
    session.handle(Batches((batch(0, 0, 1, 3), batch(0, 0, 0, 3), batch(0, 0, 1, 3, run=5))))
    taken = [session.take(), session.take()]
    assert [each[0].batch.microbatch for each in taken if each is not None] == [0, 1]
    assert session.take() is None


def test_a_range_is_no_longer_than_a_message_may_ask_for():
    asked = requests_in_ranges(0, (0,), [(0, m, 0) for m in range(MOST_REQUESTED + 2)])
    assert [(each.microbatch, each.count) for each in asked] == [
        (0, MOST_REQUESTED), (MOST_REQUESTED, 2)
    ]  # fmt: skip
