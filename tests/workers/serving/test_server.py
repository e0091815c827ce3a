"""A worker's socket for pulls: ranks get frames, strangers nothing, and no harm is done."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
import zmq

from counterpoise.balancer.job.messages import PulledFrames, PullFrames
from counterpoise.balancer.protocol.messages import ListJobs, Message
from counterpoise.balancer.transport.keys import KeyPair, PeerKeys, new_pair
from counterpoise.balancer.transport.sockets import connect, receive, send
from counterpoise.workers.serving import server
from counterpoise.workers.serving.frame_store import FrameStore
from counterpoise.workers.serving.server import PullServer

LIMIT_MS = 10_000
SECRET = b"the ranks' password"
TOKEN, SERIAL = 7, 1
REQUEST, ANSWER = PullFrames(2, TOKEN, SERIAL, ()), (PulledFrames(2, 1), [b"cat"])
Buffers = tuple[Message, list[bytes]]


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as made:
        yield made


@contextlib.contextmanager
def serving(
    keys: KeyPair | None = None, public: bytes = b"", address: str = "tcp://127.0.0.1:*"
) -> Iterator[PullServer]:
    store = FrameStore()
    store.token = TOKEN
    store.keep(SERIAL, [b"cat"])
    made = PullServer(address, keys, store)
    made.admit(public, b"" if keys else SECRET)
    try:
        yield made
    finally:
        made.close()


def ask(peer: "zmq.Socket[bytes]", message: Message, limit_ms: int = LIMIT_MS) -> Buffers | None:
    send(peer, message)
    if not peer.poll(limit_ms):
        return None
    received = receive(peer)
    assert received is not None
    return received[0], [each.bytes for each in received[1]]


def test_on_one_host_ranks_pull_over_a_unix_socket(context, tmp_path) -> None:
    with (
        serving(address=f"ipc://{tmp_path}/worker.1") as made,
        connect(context, made.endpoint, b"rank", password=SECRET) as rank,
        connect(context, made.endpoint, b"stranger", password=b"guessed") as stranger,
    ):
        send(stranger, REQUEST)
        assert ask(rank, REQUEST) == ANSWER
        assert not stranger.poll(200)


def test_a_message_that_is_no_request_is_not_answered(context) -> None:
    with serving() as made, connect(context, made.endpoint, b"rank", password=SECRET) as rank:
        send(rank, ListJobs())
        rank.send_multipart([b"nonsense", b"and more"])
        assert ask(rank, REQUEST) == ANSWER


@pytest.mark.parametrize("password", [b"", b"guessed", SECRET[:-1]])
def test_who_does_not_know_the_password_gets_nothing(context, password: bytes) -> None:
    with (
        serving() as made,
        connect(context, made.endpoint, b"stranger", password=password) as stranger,
        connect(context, made.endpoint, b"rank", password=SECRET) as rank,
    ):
        send(stranger, REQUEST)
        assert ask(rank, REQUEST) == ANSWER
        assert not stranger.poll(200)


def test_with_keys_only_the_ranks_key_is_let_in(context) -> None:
    own, ranks = new_pair("worker"), new_pair("trainer")
    with (
        serving(own, ranks.public) as made,
        connect(context, made.endpoint, b"rank", PeerKeys(ranks, own.public)) as rank,
        connect(
            context, made.endpoint, b"stranger", PeerKeys(new_pair("trainer"), own.public)
        ) as stranger,
        connect(context, made.endpoint, b"without", password=SECRET) as without,
    ):
        assert made.key == own.public
        for each in (stranger, without):
            send(each, REQUEST)
        assert ask(rank, REQUEST) == ANSWER
        assert not stranger.poll(200)
        assert not without.poll(0)


def test_nobody_is_let_in_before_the_balancer_has_said_who_may(context) -> None:
    made = PullServer("tcp://127.0.0.1:*", None, FrameStore())
    with connect(context, made.endpoint, b"early", password=b"x") as early:
        assert ask(early, PullFrames(1, 0, SERIAL, ()), limit_ms=200) is None
    made.close()


def test_a_request_that_is_too_large_ends_its_connection(context, monkeypatch) -> None:
    monkeypatch.setattr(server, "MAX_REQUEST_BYTES", 1000)
    with (
        serving() as made,
        connect(context, made.endpoint, b"loud", password=SECRET) as loud,
        connect(context, made.endpoint, b"rank", password=SECRET) as rank,
    ):
        large = PullFrames(1, TOKEN, SERIAL, tuple(range(1 << 17)))
        assert ask(loud, large, limit_ms=200) is None
        assert ask(rank, REQUEST) == ANSWER


def test_an_address_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match="--serve with another address"):
            PullServer(address, None, FrameStore())
