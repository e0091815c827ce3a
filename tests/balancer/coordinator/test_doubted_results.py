"""Workers that answer rubbish: named, turned away after a few, their work done by others."""

import msgpack
import pytest

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.coordinator.state import MAX_RUBBISH
from counterpoise.balancer.protocol.messages import PeerRejected, RunFailed, SampleFailed, StartRun
from counterpoise.balancer.protocol.parts import DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import (
    Batch,
    DecodeDone,
    Lease,
    ProbeDone,
    RequestBatch,
)
from counterpoise.workers.codec.fields import why_bad_layout
from tests.balancer.coordinator.cluster import START, Cluster

HEADER = msgpack.packb({"fields": []})


def begun(*workers):
    """A balancer that doubts its workers, at work with these."""
    cluster = Cluster()
    cluster.coordinator = Coordinator(check_layout=why_bad_layout)
    cluster.rank(b"r", (0, 1))
    for worker in workers:
        cluster.worker(worker)
    return cluster, cluster.send(b"r", StartRun(0, 0, START))


def work(cluster, sent, answers, most=200):
    """Let workers answer all their leases, each by its function; return all that was sent."""
    everything, waiting = list(sent), list(sent)
    for _ in range(most):
        if not waiting:
            return everything
        peer, message = waiting.pop(0)
        if isinstance(message, Lease) and peer in cluster.coordinator.workers:
            for ref in message.refs:
                if peer in cluster.coordinator.workers:
                    new = cluster.send(peer, answers[peer](message, ref))
                    everything += new
                    waiting += new
    return everything


def honestly(lease, ref):
    key = f"k{ref.ordinal}"
    if lease.kind == "probe":
        return ProbeDone(lease.lease, (Probed(ref.ordinal, key, (1,), 0),))
    return DecodeDone(lease.lease, (DecodedItem(ref.ordinal, key, (), HEADER, 0, 0),))


def with_other_headers(lease, ref):
    if lease.kind == "probe":
        return honestly(lease, ref)
    return DecodeDone(
        lease.lease, (DecodedItem(ref.ordinal, f"k{ref.ordinal}", (), b"\xc1 rubbish", 0, 0),)
    )


def with_other_ordinals(lease, ref):
    return ProbeDone(lease.lease, (Probed(ref.ordinal + 1000, "k", (1,), 0),))


def with_too_many_costs(lease, ref):
    if lease.kind == "probe":
        return ProbeDone(lease.lease, (Probed(ref.ordinal, f"k{ref.ordinal}", (1, 2), 0),))
    return honestly(lease, ref)


def with_a_huge_payload(lease, ref):
    if lease.kind == "probe":
        return ProbeDone(lease.lease, (Probed(ref.ordinal, f"k{ref.ordinal}", (1,), 1 << 60),))
    return honestly(lease, ref)


def with_one_name(lease, ref):
    if lease.kind == "probe":
        return ProbeDone(lease.lease, (Probed(ref.ordinal, "always", (1,), 0),))
    return honestly(lease, ref)


def with_failures_of_others(lease, ref):
    return SampleFailed(lease.lease + 1000, ref.ordinal, "k", "cut", False)


def rejections(sent, peer):
    return [m.reason for to, m in sent if to == peer and isinstance(m, PeerRejected)]


def failures(sent):
    return [m.reason for _, m in sent if isinstance(m, RunFailed)]


RUBBISH = [
    (with_other_headers, "it answers sample 'k"),
    (with_other_ordinals, "it answers sample 10"),
    (with_too_many_costs, "2 costs, 1 are needed"),
    (with_a_huge_payload, f"a payload of {1 << 60} bytes"),
    (with_failures_of_others, "under lease 1"),
]


@pytest.mark.parametrize(("answers", "words"), RUBBISH)
def test_its_work_is_done_by_another(answers, words):
    cluster, sent = begun(b"bad", b"good")
    cluster.send(b"r", *[RequestBatch(0, rank, 0, m) for rank in (0, 1) for m in (0, 1)])
    sent = work(cluster, sent, {b"bad": answers, b"good": honestly})
    (reason,) = rejections(sent, b"bad")
    assert words in reason
    assert failures(sent) == []
    batches = [message for _, message in sent if isinstance(message, Batch)]
    keys = [item.key for batch in batches for item in batch.items]
    assert sorted(keys) == sorted(f"k{n}" for n in {int(key[1:]) for key in keys})
    assert len(keys) == 4


@pytest.mark.parametrize(("answers", "words"), RUBBISH)
def test_alone_it_ends_the_run_by_name(answers, words):
    cluster, sent = begun(b"bad")
    (failure,) = set(failures(work(cluster, sent, {b"bad": answers})))
    assert failure.startswith("worker bad: ")
    assert words in failure


def test_a_few_wrong_results_are_forgiven():
    cluster, _ = begun(b"w")
    for _ in range(MAX_RUBBISH - 1):
        sent = cluster.send(b"w", ProbeDone(1000, (Probed(0, "k", (1,), 0),)))
        assert rejections(sent, b"w") == []
    assert rejections(cluster.send(b"w", ProbeDone(1000, (Probed(0, "k", (1,), 0),))), b"w")


# --- names


def test_workers_that_name_a_sample_differently_end_the_run():
    cluster, sent = begun(b"bad", b"good")
    cluster.send(b"r", *[RequestBatch(0, rank, 0, m) for rank in (0, 1) for m in (0, 1)])
    sent = work(cluster, sent, {b"bad": with_one_name, b"good": honestly})
    (reason,) = set(failures(sent))
    assert reason.startswith("sample 'always': worker ")
    assert "calls it 'k" in reason


def test_a_sample_that_comes_twice_in_a_message_counts_once_and_others_are_not_lost():
    cluster, sent = begun(b"w")
    cluster.send(b"r", *[RequestBatch(0, rank, 0, m) for rank in (0, 1) for m in (0, 1)])
    waiting, batches = list(sent), []
    while waiting and cluster.coordinator.workers:
        _, message = waiting.pop(0)
        if isinstance(message, Batch):
            batches.append(message)
        if not isinstance(message, Lease):
            continue
        if message.kind == "probe":
            waiting += cluster.send(b"w", *[honestly(message, ref) for ref in message.refs])
            continue
        items = tuple(honestly(message, ref).items[0] for ref in message.refs)
        again, once_more = items[:1] + items[:1] + items[1:], items
        waiting += cluster.send(
            b"w", DecodeDone(message.lease, again), DecodeDone(message.lease, once_more)
        )
    keys = [item.key for batch in batches for item in batch.items]
    assert len(keys) == len(set(keys)) == 4
    assert cluster.coordinator.workers[b"w"].rubbish == 0
