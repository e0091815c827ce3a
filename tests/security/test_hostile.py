"""Hostile messages: nothing crashes, nothing grows, honest peers get what they always get."""

import itertools
import json
import socket
import tracemalloc
from typing import Any

import msgpack
import pytest
import zmq

from counterpoise.balancer.coordinator.peers.admission import why_rank_refused
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.protocol.job_spec import from_json, to_json
from counterpoise.balancer.protocol.messages import (
    PROTOCOL_VERSION,
    Ping,
    Pong,
    RankBye,
    RankHello,
    WorkerBye,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import DecodeDone, ProbeDone, RequestBatch
from counterpoise.balancer.transport import sockets
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.workers.codec.fields import CodecError
from counterpoise.workers.codec.frames import decode as decode_sample
from tests.security.fuzz import attack, attack_sessions, state_size, to_peers
from tests.security.hostile import COUNT, JOB, Cluster, Mutator, Wired, corpus, introduces
from tests.security.key_party import LIMIT_S, Party


@pytest.fixture(scope="module")
def heard():
    """What the coordinator hears in an undisturbed run."""
    return corpus()


@pytest.fixture(scope="module")
def honest():
    """What the ranks are given in an undisturbed run."""
    return Cluster(7).run()


# --- honest peers' digests


@pytest.mark.parametrize("seed", range(4))
def test_a_stranger_that_says_anything_but_a_valid_hello_changes_nothing(heard, honest, seed):
    mutator, said = Mutator(heard, seed), itertools.count()

    def disturb(cluster):
        for _ in range(3):
            header, payloads = mutator.frame()
            wired = Wired(b"stranger-%d" % (next(said) % 3), header, payloads)
            if not introduces(wired):
                cluster.tell(wired)
        assert len(cluster.coordinator.peer_states) <= 4

    assert Cluster(seed).run(disturb) == honest
    assert next(said) > 400


@pytest.mark.parametrize("seed", range(4))
def test_damaged_and_replayed_messages_of_honest_peers_change_nothing(heard, honest, seed):
    mutator = Mutator(heard, seed)

    def disturb(cluster):
        if cluster.heard:
            cluster.tell(mutator.random.choice(cluster.heard[-200:]))
        header, payloads = mutator.frame()
        try:
            decode(header, len(payloads))
        except WireError:
            cluster.tell(Wired(mutator.random.choice([*cluster.workers]), header, payloads))

    def without_replayed_begins(cluster):
        disturb(cluster)
        cluster.heard[:] = [wired for wired in cluster.heard if b"Hello" not in wired.header]

    cluster = Cluster(seed)
    assert cluster.run(without_replayed_begins) == honest
    assert cluster.refused > 50


@pytest.mark.parametrize("seed", range(3))
def test_results_under_a_lease_of_somebody_else_are_not_taken(honest, seed):
    """A stranger repeats what workers say, with payloads of its own; an old incarnation, too."""

    def disturb(cluster):
        for wired in cluster.heard[-2:]:
            if wired.payloads:
                cluster.tell(Wired(b"stranger", wired.header, (b"forged" * 10,)))
        if cluster.random.random() < 0.1:
            cluster.tell(Wired(b"old", encode(WorkerHello("w0", 4, "host", 0))))
            cluster.tell(Wired(b"old", encode(WorkerReady(COUNT, "honest"))))
            cluster.tell(Wired(b"old", encode(WorkerHeartbeat("w0", 4))))
            lease = cluster.random.randrange(1, 40)
            forged = ProbeDone(lease, (Probed(0, "forged", (9,), 9),))
            cluster.tell(Wired(b"old", encode(forged)))
            done = DecodeDone(lease, (DecodedItem(lease, "forged", (), b"", 0, 0),))
            cluster.tell(Wired(b"old", encode(done), (b"forged",)))

    assert Cluster(seed).run(disturb) == honest


@pytest.mark.parametrize("seed", [5, 21])
def test_a_balancer_that_was_attacked_serves_the_next_job_as_ever(heard, honest, seed):
    mutator = Mutator(heard, seed)
    attacked = Cluster(1, workers=0, honest_ranks=False)
    names = [b"hostile-%d" % n for n in range(4)]
    for _ in range(3000):
        header, payloads = mutator.frame()
        attacked.tell(Wired(mutator.random.choice(names), header, payloads))
        attacked.step()
    for name in names:
        attacked.coordinator.unreachable(name, Ping(), attacked.now)
    assert attacked.coordinator.job is None
    after = Cluster(7)
    after.now, after.coordinator = attacked.now, attacked.coordinator
    assert after.run() == honest


# --- fuzzing


@pytest.mark.parametrize("seed", range(2))
def test_mutated_frames_crash_nothing_and_grow_nothing(heard, seed):
    assert attack(Mutator(heard, seed), 3000) == 3000
    assert attack_sessions(Mutator(to_peers(), seed), 3000) == 3000


def test_no_rank_can_make_the_balancer_remember_without_end():
    cluster = Cluster(0)
    for _ in range(60):
        cluster.step()
    before = state_size(cluster.coordinator)
    for step in range(1100):
        cluster.tell(Wired(b"rank-0", encode(RequestBatch(7, 0, step, 0))))
        cluster.tell(Wired(b"stranger-%d" % step, encode(Ping())))
    assert state_size(cluster.coordinator) - before <= 1024


def goodbye(cluster, name):
    cluster.tell(Wired(name, encode(RankHello((0,), to_json(JOB)))))
    cluster.tell(Wired(name, encode(RankBye())))


def takeover(cluster, name):
    cluster.tell(Wired(name, encode(RankHello((0,), to_json(JOB)))))


def short_work(cluster, name):
    cluster.tell(Wired(name, encode(WorkerHello(name.decode(), 0, "host", 0))))
    cluster.tell(Wired(name, encode(WorkerBye())))


@pytest.mark.parametrize("come", [goodbye, takeover, short_work])
def test_peers_that_come_and_go_leave_no_more_than_so_much_behind(come):
    cluster = Cluster(0)
    for _ in range(60):
        cluster.step()
    before = state_size(cluster.coordinator)
    for number in range(1000):
        come(cluster, b"another-%d" % number)
    assert state_size(cluster.coordinator) - before <= 200


# --- single messages


def nested(depth, element=b"\x91"):
    return b"\x93\x01\xa3Ask" + element * depth + b"\xc0"


HELLO = msgpack.packb("RankHello")
DONE = DecodeDone(1, (DecodedItem(1, "k", (), b"", 0, 0),))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        nested(10),
        nested(100_000),
        nested(1000, b"\xdd\x00\x0f\xff\xff"),
        nested(3000, b"\xdc\xff\xff"),
        nested(50, b"\x81\x01"),
        b"\xdd\xff\xff\xff\xff\x01",
        b"\xdf\xff\xff\xff\xff\x01",
        b"\x93\x01\xa3Ask\xdb\xff\xff\xff\xff",
        b"\x93\x01\xa3Ask\xc6\xff\xff\xff\xff",
        b"\x93\x01\xa3Ask\xc9\xff\xff\xff\xff\x01",
        b"\x94\x01" + HELLO + b"\xdd\x00\x10\x00\x00",
        b"\x94\x01" + HELLO + b"\x91" + b"\xcf" + b"\xff" * 8 + b"\xa0",
        b"\x94\x01" + HELLO + b"\xdc\xff\xff" + b"\x90" * 0xFFFF + b"\xa0",
        b"\x93\x01\xa3Ask" + b"\xc0" * (5 << 20),
        msgpack.packb([PROTOCOL_VERSION, "RequestBatch", 0, 0, 0]),
        msgpack.packb([PROTOCOL_VERSION, "RequestBatch", 0, 0, 0, 0, 0]),
        msgpack.packb([PROTOCOL_VERSION, "RequestBatch", 0, 0, 0, True]),
        msgpack.packb([PROTOCOL_VERSION, "__class__"]),
        msgpack.packb([PROTOCOL_VERSION, "x" * 1000]),
        msgpack.packb([PROTOCOL_VERSION + 1, "Bye"]),
        msgpack.packb({"a": 1}),
    ],
)
def test_a_pathological_header_is_refused_in_little_memory_and_few_words(header):
    tracemalloc.start()
    with pytest.raises(WireError) as raised:
        decode(header, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (64 << 20)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("message", "frames"), [
    (Ping(), 1), (DONE, 0), (DONE, 2),
    (RequestBatch(0, 0, 0, 0), 70_000),
])  # fmt: skip
def test_a_wrong_number_of_frames_is_refused(message, frames):
    with pytest.raises(WireError, match="payload frames, it has"):
        decode(encode(message), frames)


def test_a_pickled_sample_is_not_taken_from_another_host():
    with pytest.raises(CodecError, match="pickled object is not taken from another host"):
        decode_sample({"object": [4]}, b"\x80\x05N.")


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
    cluster = Cluster(honest_ranks=False)
    cluster.tell(Wired(b"h", encode(RankHello((0,), json.dumps(job)))))
    assert cluster.coordinator.job is None


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", '{"plan": null}', "nan", '{"plan": {}}'])
def test_a_job_that_is_none_is_refused(text):
    cluster = Cluster(honest_ranks=False)
    cluster.tell(Wired(b"h", encode(RankHello((0,), text))))
    assert cluster.coordinator.job is None


def test_a_refusal_does_not_say_a_whole_job_again():
    for change in ({"on_error": "x" * 50_000}, {"source": {"pattern": "y" * 50_000}}):
        hello = RankHello((0,), json.dumps(json.loads(to_json(JOB)) | change))
        assert 0 < len(why_rank_refused(JOB, hello, make_planner)) < 1200


def test_a_deep_description_and_a_loop_without_balancing_are_refused():
    deep = {}
    for _ in range(100):
        deep = {"a": deep}
    job = json.loads(to_json(JOB))
    cluster = Cluster(honest_ranks=False)
    for text in (json.dumps(job | {"source": deep}), json.dumps(job | {"plan": None})):
        cluster.tell(Wired(b"h", encode(RankHello((0,), text))))
        assert cluster.coordinator.job is None


@pytest.mark.parametrize("count", [-1, 1 << 40, (1 << 63) - 1])
def test_a_worker_with_an_impossible_number_of_samples_is_refused(count, honest):
    cluster = Cluster(7, workers=0)
    for _ in range(10):
        cluster.step()
    cluster.tell(Wired(b"h", encode(WorkerHello("w9", 0, "h", 0))))
    cluster.tell(Wired(b"h", encode(WorkerReady(count, "x"))))
    assert not cluster.coordinator.workers
    assert not cluster.coordinator.is_ready


# --- on real sockets


@pytest.fixture
def balancer():
    party = Party()
    yield party
    party.close()


def answer(address):
    """Return what a balancer says to a ping."""
    with zmq.Context() as context, sockets.connect(context, address, b"asker") as asker:
        sockets.send(asker, Ping())
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
    assert isinstance(answer(balancer.address), Pong)


def test_many_frames_and_no_frame_are_refused_and_counted(balancer):
    with zmq.Context() as context, sockets.connect(context, balancer.address, b"h") as peer:
        peer.send_multipart([b""] * 70_000)
        balancer.wait(lambda: balancer.refused("a message of 70000 frames"))
        assert peer.poll(1000 * LIMIT_S)
        answer_to_it: Any = sockets.receive(peer)
        assert "70000 frames" in answer_to_it[0].reason
    assert isinstance(answer(balancer.address), Pong)


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
                sockets.send(deaf, Ping())
            deaf.send(b"and that was all")
            party.wait(lambda: party.refused("not a msgpack header"))
            assert isinstance(answer(party.address), Pong)
    finally:
        party.close()
