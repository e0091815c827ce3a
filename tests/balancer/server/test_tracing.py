"""A trace at the server: whose messages it records, whom it asks, and what it answers."""

import pytest

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.protocol.messages import PeerRejected, Ping
from counterpoise.balancer.protocol.parts import EpochPosition, Probed, SampleRef, Weights
from counterpoise.balancer.protocol.payload_messages import (
    Ack,
    Batch,
    Lease,
    ProbeDone,
    RequestBatch,
)
from counterpoise.balancer.protocol.trace_messages import (
    Span,
    StartTrace,
    TraceReport,
    TraceSpans,
)
from counterpoise.balancer.server import tracing
from counterpoise.balancer.server.spans import clock_ahead
from counterpoise.balancer.server.tracing import GRACE_S, MOST_QUESTIONS, Tracer

ASKS, WORKER, RANK = b"one|doctor.9f", b"one|w.1f", b"one|r.2f"
FOREIGN = b"two|w.3f"
START = StartTrace(1000, 0)
PROBED = ProbeDone(7, (Probed(3, "k", (1,), 0),))
BATCH = Batch(
    run=0, rank=1, step=2, microbatch=0, microbatches=1, weights=Weights(0, 0, 0, 0, 0, 0),
    costs=(), padding=(), after=EpochPosition(0, 0, 0, 0, ""), items=(), holes=(), step_holes=(),
    servers=(),
)  # fmt: skip


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


def test_leases_requests_and_batches_are_spans_from_one_message_to_the_other(tracer):
    tracer.sent(WORKER, Lease(7, "probe", 0, (SampleRef(3, 5),)), 0.1)
    tracer.received(WORKER, PROBED, 0.3, 0.35, has_planned=True)
    tracer.received(RANK, RequestBatch(0, 1, 2, 0), 0.2, 0.2, has_planned=False)
    tracer.sent(RANK, BATCH, 0.4)
    tracer.received(RANK, Ack(0, 1, 2, 0), 0.9, 0.9, has_planned=False)
    own = spans_of(tracer, 1.0 + GRACE_S)["balancer"].spans
    found = {span.kind: (span.begin_us - 100_000_000, span.end_us - 100_000_000) for span in own}
    assert (
        found.items()
        >= {
            "lease to probe": (100_000, 300_000),
            "plan": (300_000, 350_000),
            "request": (200_000, 400_000),
            "at the rank": (400_000, 900_000),
        }.items()
    )
    assert next(span for span in own if span.kind == "lease to probe").ordinals == (3,)


def test_a_peer_is_asked_a_few_times_and_its_quickest_answer_tells_its_clock(tracer):
    for number in range(MOST_QUESTIONS):
        (sent,) = tracer.received(WORKER, PROBED, 0.1, 0.1, has_planned=False)
        assert sent == Send(WORKER, StartTrace(900, 100_000_000))
        delay = 5000 * abs(3 - number) + 10
        told = 100_000_000 + 2_000_000
        tracer.take(WORKER, TraceSpans(100_000_000 - delay, told, told), 0.2)
    assert tracer.received(WORKER, PROBED, 0.1, 0.1, has_planned=False) == []
    done = TraceSpans(0, 0, 0, True, (Span("decode", 1, 2, (), ()),))
    tracer.take(WORKER, done, 1.0)
    found = spans_of(tracer)["w"]
    assert (found.ahead_us, found.error_us) == clock_ahead(
        100_000_000 - 10, 102_000_000, 102_000_000, 100_000_000
    )
    assert found.spans == done.spans


def test_peers_that_are_late_are_waited_for_and_then_left_out(tracer):
    tracer.received(WORKER, PROBED, 0.1, 0.1, has_planned=False)
    assert tracer.end_if_due(1.0) == []
    assert spans_of(tracer, 1.0 + GRACE_S)["w"].spans == ()
    assert tracer.until is None
    assert tracer.end_if_due(9.0) == []


def test_a_trace_of_one_job_sees_nothing_of_another(tracer):
    assert tracer.received(FOREIGN, PROBED, 0.1, 0.1, has_planned=True) == []
    tracer.sent(FOREIGN, BATCH, 0.1)
    (refused,) = tracer.take(b"two|doctor.1", START, 0.2)
    assert isinstance(refused.message, PeerRejected)
    assert refused.peer == b"two|doctor.1"
    tracer.take(FOREIGN, TraceSpans(0, 0, 0, True, (Span("x", 0, 0, (), ()),)), 0.3)
    found = spans_of(tracer)
    assert {*found} == {"balancer"}
    assert found["balancer"].spans == ()


def test_other_messages_are_no_spans_and_all_who_ask_are_answered(tracer):
    assert tracer.received(RANK, Ping(), 0.1, 0.1, has_planned=False) == []
    tracer.take(b"one|doctor.2", START, 0.5)
    assert {sent.peer for sent in tracer.end_if_due(1.0)} == {ASKS, b"one|doctor.2"}
