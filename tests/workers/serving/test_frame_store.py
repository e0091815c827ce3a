"""What a worker keeps for trainers: they get what they name, over a real socket, or nothing."""

from collections.abc import Iterator

import pytest
import zmq

from counterpoise.balancer.job.messages import PulledFrames, PullFrames
from counterpoise.balancer.transport.sockets import connect, receive, send
from counterpoise.workers.serving.frame_store import FrameStore
from counterpoise.workers.serving.server import PullServer

LIMIT_MS = 10_000
TOKEN, SERIAL = 7, 3
FRAMES = [b"head", bytes(100_000), b"tail"]
Answer = tuple[PulledFrames, list[bytes]]


@pytest.fixture
def store() -> FrameStore:
    made = FrameStore()
    made.token = TOKEN
    made.keep(SERIAL, [memoryview(frame) for frame in FRAMES])
    return made


@pytest.fixture
def server(store: FrameStore) -> Iterator[PullServer]:
    made = PullServer("tcp://127.0.0.1:*", None, store)
    made.admit(b"", b"password")
    yield made
    made.close()


@pytest.fixture
def trainer(server: PullServer) -> Iterator["zmq.Socket[bytes]"]:
    with (
        zmq.Context() as context,
        connect(context, server.endpoint, b"trainer", password=b"password") as socket,
    ):
        yield socket


def ask(trainer: "zmq.Socket[bytes]", request: PullFrames) -> Answer:
    send(trainer, request)
    assert trainer.poll(LIMIT_MS)
    received = receive(trainer)
    assert received is not None
    assert isinstance(received[0], PulledFrames)
    return received[0], [frame.bytes for frame in received[1]]


@pytest.mark.parametrize(
    ("named", "expected"), [((), FRAMES), ((2, 0), [b"tail", b"head"]), ((1,), [FRAMES[1]])]
)
def test_a_trainer_gets_the_frames_that_it_names(trainer, named, expected) -> None:
    answer = ask(trainer, PullFrames(1, TOKEN, SERIAL, named))
    assert answer == (PulledFrames(1, len(expected)), expected)


@pytest.mark.parametrize(
    "request_",
    [
        PullFrames(1, TOKEN, SERIAL + 1, ()),  # never kept, or freed
        PullFrames(1, TOKEN + 1, SERIAL, ()),  # meant for another worker
        PullFrames(1, TOKEN, SERIAL, (0, 3)),  # has only three
        PullFrames(1, TOKEN, SERIAL, (1,) * 4),  # would get more than there is
    ],
)
def test_of_what_is_not_there_nothing_comes(trainer, request_) -> None:
    assert ask(trainer, request_) == (PulledFrames(1, 0), [])


def test_what_was_freed_is_gone(trainer, store) -> None:
    store.free((SERIAL, SERIAL, 99))
    assert ask(trainer, PullFrames(1, TOKEN, SERIAL, ())) == (PulledFrames(1, 0), [])


def test_no_frame_is_copied(store) -> None:
    kept = store.find_frames(SERIAL)
    _, frames = store.answer(PullFrames(1, TOKEN, SERIAL, (1, 2)))
    assert frames[0] is kept[1]
    assert frames[1] is kept[2]
