"""A trace at the server: whose messages it records, whom it asks, and what it answers."""

import pytest

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.parties.messages import TrainerBeat, WantBatches
from counterpoise.balancer.pool.messages import COSTS, SAMPLES, DoPart, PartBroken, PartMeasured
from counterpoise.balancer.protocol.messages import PeerRejected
from counterpoise.balancer.protocol.trace_messages import Span, StartTrace, TraceReport, TraceSpans
from counterpoise.balancer.server import tracing
from counterpoise.balancer.server.tracing import GRACE_S, MOST_QUESTIONS, TURN_S, Tracer

ASKS, WORKER, RANK = b"one|doctor.9f", b"one|w.1f", b"one|r.2f"
FOREIGN = b"two|w.3f"
START = StartTrace(1000)
MEASURED = PartMeasured(3, (), (), 0, False, ())
PART = DoPart(3, COSTS, (1, 0, 0, 4, 7))


@pytest.fixture
def tracer(monkeypatch):
    """A tracer that has begun at 0 s, when the wall clock is at 100 s, and stays there."""
    monkeypatch.setattr(tracing, "_wall_us", lambda: 100_000_000)
    made = Tracer()
    assert made.take(ASKS, START, 0.0) == []
    return made


def spans_of(tracer, now=1.0):
    (sent,) = tracer.end_if_due(now)
    assert sent.peer == ASKS
    assert isinstance(sent.message, TraceReport)
    return {party.name: party for party in sent.message.parties}


def test_a_peer_is_asked_a_few_times_and_its_quickest_answer_tells_its_clock(tracer):
    for number in range(MOST_QUESTIONS):
        assert tracer.received(WORKER, MEASURED, 0.1) == [Send(WORKER, StartTrace(900))]
        delay_us = 5000 * abs(3 - number) + 10
        tracer.take(WORKER, TraceSpans(102_000_000 - delay_us), 0.2)
    assert tracer.received(WORKER, MEASURED, 0.1) == []
    done = TraceSpans(0, True, (Span("decode", 1, 2, (), ()),))
    tracer.take(WORKER, done, 1.0)
    found = spans_of(tracer)["w"]
    assert (found.ahead_us, found.spans) == (2_000_000 - 10, done.spans)


def test_peers_that_are_late_are_waited_for_and_then_left_out(tracer):
    tracer.received(WORKER, MEASURED, 0.1)
    assert tracer.end_if_due(1.0) == []
    assert spans_of(tracer, 1.0 + GRACE_S)["w"].spans == ()
    assert tracer.until is None
    assert tracer.end_if_due(9.0) == []


def test_a_trace_of_one_job_sees_nothing_of_another(tracer):
    assert tracer.received(FOREIGN, MEASURED, 0.1) == []
    tracer.sent(FOREIGN, PART, 0.1)
    tracer.received(FOREIGN, MEASURED, 0.1)
    (refused,) = tracer.take(b"two|doctor.1", START, 0.2)
    assert isinstance(refused.message, PeerRejected)
    assert refused.peer == b"two|doctor.1"
    tracer.take(FOREIGN, TraceSpans(0, True, (Span("x", 0, 0, (), ()),)), 0.3)
    found = spans_of(tracer)
    assert {*found} == {"balancer"}
    assert found["balancer"].spans == ()


def test_other_messages_are_no_spans_and_all_who_ask_are_answered(tracer):
    assert tracer.received(RANK, TrainerBeat(1, False), 0.1) == []
    tracer.take(b"one|doctor.2", START, 0.5)
    assert {sent.peer for sent in tracer.end_if_due(1.0)} == {ASKS, b"one|doctor.2"}


def times_of(tracer):
    own = spans_of(tracer, 1.0 + GRACE_S)["balancer"].spans
    assert len({span.kind for span in own}) == len(own)
    return {
        span.kind: (span.begin_us - 100_000_000, span.end_us - 100_000_000, span.place,
                    span.ordinals)
        for span in own
    }  # fmt: skip


def test_parts_are_spans_from_when_they_were_first_given_with_their_samples(tracer):
    tracer.sent(WORKER, PART, 0.1)
    tracer.sent(WORKER, DoPart(4, SAMPLES, (0, 0, 0, 9)), 0.15)
    tracer.sent(WORKER, PART, 0.2)  # it may have been lost
    (asked,) = tracer.received(WORKER, MEASURED, 0.3)
    assert isinstance(asked.message, StartTrace)
    tracer.received(WORKER, PartBroken(4, "no", 0), 0.4)
    tracer.received(WORKER, PartBroken(4, "no", 0), 0.5)  # once more
    assert times_of(tracer) == {
        "part to measure": (100_000, 300_000, (), (4, 7)),
        "part to load": (150_000, 400_000, (), (9,)),
    }


def test_a_trainer_is_asked_when_it_wants_batches(tracer):
    assert tracer.received(RANK, WantBatches(0, ((1, 5, 5),), 0), 0.1) == [
        Send(RANK, StartTrace(900))
    ]


def test_turns_that_take_long_are_plans(tracer):
    tracer.turned(0.1, 0.1 + TURN_S / 2)
    tracer.turned(0.2, 0.3)
    assert times_of(tracer) == {"plan": (200_000, 300_000, (), ())}


def test_without_a_trace_nothing_is_kept_of_turns():
    tracer = Tracer()
    tracer.turned(0.1, 0.9)
    assert tracer.end_if_due(9.0) == []
    assert not tracer._recorder._spans
