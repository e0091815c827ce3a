"""Hostile messages: nothing crashes, nothing grows, honest peers get what they always get."""

import json
import socket
import tracemalloc
from typing import Any

import msgpack
import pytest
import zmq
from msgspec import structs

from counterpoise.balancer.job.messages import JobOpened, JoinPool, LeavePool, PulledFrames
from counterpoise.balancer.parties.messages import (
    BeginRun,
    CountLabels,
    JoinJob,
    LeaveJob,
    LostPieces,
    WantBatches,
)
from counterpoise.balancer.pool.messages import PartBroken, PartMade, PartMeasured, PoolBeat
from counterpoise.balancer.protocol.job_spec import from_json, to_json
from counterpoise.balancer.protocol.messages import (
    PROTOCOL_VERSION,
    JobList,
    ListJobs,
    PeerRejected,
)
from counterpoise.balancer.transport import sockets
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.codec.contents import CodecError
from tests.balancer.job.cluster import START
from tests.security.hostile import JOB, LAYOUT, Cluster, Wired, introduces, state_size
from tests.security.key_party import LIMIT_S, Party


@pytest.fixture(scope="module")
def honest():
    """What the ranks are given in an undisturbed run."""
    return Cluster(7).run()


def joining(job=None, layout=LAYOUT, **more):
    """Return what a trainer says of a job first."""
    return JoinJob((0,), 0, 1, to_json(JOB) if job is None else job, layout, 1, **more)


WORKER = JoinPool("w9", 0, "", "", b"", 1 << 30)


def replace_name(hello, name):
    return structs.replace(hello, name=name)


def replace_number(message, number):
    return structs.replace(message, number=number)


# --- honest peers' digests


@pytest.mark.parametrize("seed", range(3))
def test_answers_to_parts_of_somebody_else_are_not_taken(honest, seed):
    """A stranger repeats what workers say, with frames of its own; an old incarnation, too."""

    def disturb(cluster):
        for wired in cluster.heard[-2:]:
            if wired.payloads:
                cluster.tell(
                    Wired(b"job|stranger", wired.header, (b"forged",) * len(wired.payloads))
                )
            elif wired.peer in cluster.workers and not introduces(wired):
                cluster.tell(Wired(b"job|stranger", wired.header))
        if cluster.chance.random() < 0.1:
            name = next(iter(cluster.workers)).decode()
            old = replace_name(WORKER, name)
            number = cluster.chance.randrange(1, 1 << 40)
            for message in (
                old, JobOpened(1, 40, "print", (), False, True), PoolBeat(0, -1, False, ()),
                PartMade(number, 1, 1, (1,), ("forged",), (), ((1,),), (), -1, -1, 1),
                PartMeasured(number, ((9,),), (), 1, False, ()), PartBroken(number, "forged", 1),
            ):  # fmt: skip
                cluster.tell(Wired(b"job|old", encode(message)))

    assert Cluster(seed).run(disturb) == honest


# --- what is remembered


def begun():
    """Return a cluster in which all goes on, and a trainer of it."""
    cluster = Cluster(0)
    for _ in range(60):
        cluster.step()
    return cluster, next(iter(cluster.trainers.values())).peer


def test_no_rank_can_make_the_balancer_remember_without_end():
    cluster, rank = begun()
    before = state_size(cluster.jobs)
    for step in range(1100):
        for message in (
            CountLabels(0, 0, step, 1), LostPieces(0, 0, step, 1, (0, 1 << 40), "gone"),
            WantBatches(0, ((0, 1 << 62, 0), (1, 1 << 62, 1 << 62), (1 << 40, 1, 1)), 1),
            BeginRun(0, 0, START, "", -1, START, step, 0, (), ()),
        ):  # fmt: skip
            cluster.tell(Wired(rank, encode(message)))
        cluster.tell(Wired(b"job|stranger-%d" % step, encode(ListJobs())))
        cluster.turn()
    assert state_size(cluster.jobs) - before <= 1024


def goodbye(cluster, name):
    cluster.tell(Wired(name, encode(joining())))
    cluster.tell(Wired(name, encode(LeaveJob())))


def newcomer(cluster, name):
    cluster.tell(Wired(name, encode(joining())))
    cluster.jobs.unreachable(name, cluster.now)


def short_work(cluster, name):
    cluster.tell(Wired(name, encode(replace_name(WORKER, name.decode()))))
    cluster.tell(Wired(name, encode(LeavePool())))


@pytest.mark.parametrize("come", [goodbye, newcomer, short_work])
def test_peers_that_come_and_go_leave_no_more_than_so_much_behind(come):
    cluster, _ = begun()
    before = state_size(cluster.jobs)
    for number in range(3000):
        come(cluster, b"job|another-%d" % number)
        cluster.now += 0.1  # a newcomer is forgotten in time
        for trainer in cluster.trainers.values():
            cluster.jobs.unreachable(trainer.peer, cluster.now)
        cluster.turn()
    assert state_size(cluster.jobs) - before <= 1500


# --- single messages


def nested(depth, element=b"\x91"):
    return b"\x93\x01\xa3Bye" + element * depth + b"\xc0"


HELLO = msgpack.packb("BeginRun")


@pytest.mark.parametrize(
    "header",
    [
        b"", nested(10), nested(100_000), nested(1000, b"\xdd\x00\x0f\xff\xff"),
        nested(3000, b"\xdc\xff\xff"), nested(50, b"\x81\x01"), b"\xdd\xff\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff\x01", b"\x93\x01\xa3Bye\xdb\xff\xff\xff\xff",
        b"\x93\x01\xa3Bye\xc6\xff\xff\xff\xff", b"\x93\x01\xa3Bye\xc9\xff\xff\xff\xff\x01",
        b"\x94\x01" + HELLO + b"\xdd\x00\x10\x00\x00",
        b"\x94\x01" + HELLO + b"\x91" + b"\xcf" + b"\xff" * 8 + b"\xa0",
        b"\x94\x01" + HELLO + b"\xdc\xff\xff" + b"\x90" * 0xFFFF + b"\xa0",
        b"\x93\x01\xa3Bye" + b"\xc0" * (5 << 20),
        msgpack.packb([PROTOCOL_VERSION, "CountLabels", 0, 0, 0]),
        msgpack.packb([PROTOCOL_VERSION, "CountLabels", 0, 0, 0, 0, 0]),
        msgpack.packb([PROTOCOL_VERSION, "CountLabels", 0, 0, 0, True]),
        msgpack.packb([PROTOCOL_VERSION, "CountLabels", 0, 0, 0, -1]),
        msgpack.packb([PROTOCOL_VERSION, "__class__"]),
        msgpack.packb([PROTOCOL_VERSION, "x" * 1000]), msgpack.packb([PROTOCOL_VERSION + 1, "Bye"]),
        msgpack.packb({"a": 1}),
    ],
)  # fmt: skip
def test_a_pathological_header_is_refused_in_little_memory_and_few_words(header):
    tracemalloc.start()
    with pytest.raises(WireError) as raised:
        decode(header, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (64 << 20)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("message", "frames"), [
    (ListJobs(), 1), (PulledFrames(1, 1), 0), (PulledFrames(1, 1), 2), (LeavePool(), 70_000),
])  # fmt: skip
def test_a_wrong_number_of_frames_is_refused(message, frames):
    with pytest.raises(WireError, match="payload frames, it has"):
        decode(encode(message), frames)


def test_a_pickled_sample_is_not_taken_from_another_host():
    with pytest.raises(CodecError):
        decode_batch([b"\x80\x05N."])


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 10**12},
        {"accumulate": 10**12},
        {"accumulate_from": 10**12},
        {"samples_per_step": 10**12},
        {"resources": [str(n) for n in range(100)], "budgets": [None] * 100},
    ],
)
def test_a_job_that_asks_for_too_much_is_refused(changes):
    job = json.loads(to_json(JOB))
    job["plan"] |= {"grouping": "balanced", "batch_size": None, "budgets": [5]}
    job["plan"] |= {"accumulate": "auto", **changes}
    with pytest.raises(ValueError, match="at most"):
        from_json(json.dumps(job))
    assert is_refused(joining(json.dumps(job)))


def is_refused(message):
    """Whether a newcomer that says this is refused in few words, and nothing is begun."""
    cluster = Cluster(workers=0, ranks=0)
    cluster.tell(Wired(b"other|h", encode(message)))
    assert not cluster.jobs.jobs
    (told,) = cluster.told
    refusal = decode(told.header, 0)
    assert isinstance(refusal, PeerRejected)
    return 0 < len(refusal.reason) < 1200


# its report would not be one that can be sent
OF_30_DIGITS = json.dumps(json.loads(to_json(JOB)) | {"buffer_bytes": 10**30})


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", '{"plan": null}', "nan", '{"plan": {}}', OF_30_DIGITS]
)
def test_a_job_that_is_none_is_refused(text):
    assert is_refused(joining(text))


def test_a_refusal_does_not_say_a_whole_job_again():
    assert is_refused(joining(json.dumps(json.loads(to_json(JOB)) | {"on_error": "x" * 50_000})))
    cluster, _ = begun()
    cluster.told.clear()
    other = json.dumps(json.loads(to_json(JOB)) | {"source": {"pattern": "y" * 50_000}})
    for _ in range(5):
        cluster.tell(Wired(b"job|h", encode(joining(other))))
        for _ in range(300):
            cluster.step()
    refusals = [wired for wired in cluster.told if b"PeerRejected" in wired.header[:16]]
    assert refusals
    assert all(len(wired.header) < 1300 for wired in refusals)


def test_a_deep_description_and_a_loop_without_balancing_are_refused():
    deep = {}
    for _ in range(100):
        deep = {"a": deep}
    job = json.loads(to_json(JOB))
    for text in (json.dumps(job | {"source": deep}), json.dumps(job | {"plan": None})):
        assert is_refused(joining(text))
    assert is_refused(joining(layout=json.dumps(deep)))


# --- on real sockets


@pytest.fixture
def balancer():
    party = Party()
    yield party
    party.close()


def answer(address):
    """Return what a balancer says to a question."""
    with zmq.Context() as context, sockets.connect(context, address, b"asker") as asker:
        sockets.send(asker, ListJobs())
        assert asker.poll(1000 * LIMIT_S)
        answer: Any = sockets.receive(asker)
        return answer[0]


def test_what_is_no_zmtp_is_dropped(balancer):
    host, port = balancer.address.removeprefix("tcp://").split(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    for number in range(100):
        with socket.create_connection((host, int(port))) as raw:
            junk = bytes((number * each) % 256 for each in range(number * 7))
            raw.sendall(greeting + junk if number % 2 else junk)
    assert isinstance(answer(balancer.address), JobList)


def test_many_frames_and_no_frame_are_refused_and_counted(balancer):
    with zmq.Context() as context, sockets.connect(context, balancer.address, b"h") as peer:
        peer.send_multipart([b""] * 70_000)
        balancer.wait(lambda: balancer.refused("a message of 70000 frames"))
        assert peer.poll(1000 * LIMIT_S)
        answer_to_it: Any = sockets.receive(peer)
        assert "70000 frames" in answer_to_it[0].reason
    assert isinstance(answer(balancer.address), JobList)


def test_a_peer_that_does_not_read_is_let_go(monkeypatch):
    monkeypatch.setattr(sockets, "MAX_WAITING_OUT", 100)
    party = Party()
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
            deaf.setsockopt(zmq.LINGER, 0)
            deaf.setsockopt(zmq.RCVHWM, 1)
            deaf.setsockopt(zmq.RCVBUF, 4096)
            deaf.setsockopt(zmq.ROUTING_ID, b"deaf")
            deaf.connect(party.address)
            for _ in range(5_000):
                sockets.send(deaf, ListJobs())
            deaf.send(b"and that was all")
            party.wait(lambda: party.refused("not a msgpack header"))
            assert isinstance(answer(party.address), JobList)
    finally:
        party.close()
