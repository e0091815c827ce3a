"""The outbox: small microbatches for one process leave together, in the order of the messages."""

from counterpoise.balancer.coordinator import effects
from counterpoise.balancer.coordinator.effects import Outbox, Send
from counterpoise.balancer.protocol.messages import (
    NO_HANDLES,
    Ack,
    Batch,
    Batches,
    BatchItem,
    EpochEnd,
    EpochPosition,
    Hole,
    RequestBatch,
    Weights,
)
from tests.balancer.coordinator.test_shared_payloads import Job

A, B = b"a", b"b"


def batch(microbatch, items=1, holes=(), header=b"h"):
    weights, after = Weights(0, 0, 0, 0, 0, 0), EpochPosition(0, 0, 1, 0)
    found = tuple(BatchItem(n, f"k{n}", header) for n in range(items))
    return Batch(0, 0, 0, microbatch, 9, weights, (), after, found, holes, (), NO_HANDLES, ())


def sent(*messages):
    """What leaves when these messages, with their peers and payloads, are added."""
    outbox = Outbox()
    for message in messages:
        outbox.add(*message)
    found = outbox.take()
    assert outbox.take() == []
    return found


def test_microbatches_leave_together_for_each_process_in_their_order():
    one, two, three, other = batch(0), batch(1), batch(2), batch(5)
    assert sent((A, one), (B, other), (A, two), (A, three)) == [
        Send(A, Batches((one, two, three))), Send(B, other)
    ]  # fmt: skip


def test_no_microbatch_overtakes_another_message_for_its_process():
    one, two, three, end = batch(0), batch(1), batch(2), EpochEnd(0, 3)
    assert sent((A, one), (A, two), (B, end), (A, end), (A, three)) == [
        Send(A, Batches((one, two))), Send(B, end), Send(A, end), Send(A, three)
    ]  # fmt: skip


def test_payload_frames_and_reports_of_holes_leave_alone():
    one, two = batch(0), batch(1)
    broken = batch(2, holes=(Hole(7, "k", "why", ""),))
    assert sent((A, one), (A, broken), (A, two, (b"x",)), (A, two)) == [
        Send(A, one), Send(A, broken), Send(A, two, (b"x",)), Send(A, two)
    ]  # fmt: skip


def test_what_leaves_together_has_a_small_header(monkeypatch):
    monkeypatch.setattr(effects, "TOGETHER_BYTES", 700)
    several = [batch(n, items=2, header=bytes(100)) for n in range(5)]
    found = [each.message for each in sent(*[(A, each) for each in several])]
    assert found == [Batches(tuple(several[:2])), Batches(tuple(several[2:4])), several[4]]


def test_what_a_rank_asks_for_together_and_is_ready_it_gets_together():
    job = Job()
    job.ask(0, 0)
    effects = job.coordinator.handle(
        b"r", RequestBatch(0, 0, 1, 0, count=2, ack=Ack(0, 0, 0, 1)), (), 0.0
    )
    (together,) = [each.message for each in effects if each.peer == b"r"]
    assert [(each.step, each.microbatch) for each in together.batches] == [(1, 0), (1, 1)]


def test_a_microbatch_that_is_ready_waits_for_no_other():
    job = Job()
    job.tell(b"r", RequestBatch(0, 0, 0, 0, count=2))
    job.work()
    assert [each.microbatch for each in job.batches] == [0, 1]
