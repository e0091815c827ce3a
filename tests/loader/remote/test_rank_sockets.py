"""A rank's connection: one at a time of its name, and another where it has been lost."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import zmq

from counterpoise.balancer.parties.messages import JoinJob, TrainerBeat
from counterpoise.balancer.transport.sockets import connect, decode_routed, listen, receive_frames
from counterpoise.loader.remote import connection as shell
from tests.loader.alarms import Interrupted
from tests.loader.remote.served import connect_to

PATIENCE_MS, BEAT = 20_000, TrainerBeat(1, False)


def interrupted_at(line: int, action: Callable[[], Any]) -> bool:
    """Run something, raise at a line of opening and closing sockets; return False if it has less.

    What raises in a finalizer is swallowed, as a signal's handler's error is.
    """
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(
            ("/rank_sockets.py", "/sockets.py", "/context.py")
        ):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise Interrupted
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(former)
    return seen >= line


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> "list[zmq.Context[Any]]":
    """The contexts of all connections that are opened; each must be closed before the next."""
    found: list[zmq.Context[Any]] = []

    class Noted(zmq.Context[Any]):
        def __init__(self) -> None:
            assert all(each.closed for each in found)
            super().__init__()
            found.append(self)

    monkeypatch.setattr(zmq, "Context", Noted)
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_two_connections_of_a_name_whenever_a_handler_raises(
    opened: "list[zmq.Context[Any]]",
) -> None:
    connection = connect_to("tcp://127.0.0.1:9")
    sockets = connection._sockets
    sockets.give_up()

    def anew() -> None:
        sockets.drop()
        sockets.link()

    line = 1
    while interrupted_at(line, anew):
        sockets.link().send(BEAT)
        assert [each.closed for each in opened] == [True] * (len(opened) - 1) + [False]
        line += 1
    assert line > 20
    connection.close()
    assert opened[-1].closed


def heard(router: "zmq.Socket[bytes]") -> list[type]:
    """Return the kinds of messages that have come, once there is one."""
    assert router.poll(PATIENCE_MS), "nothing came"
    kinds = []
    while (frames := receive_frames(router)) is not None:
        content = decode_routed(frames)[2]
        assert isinstance(content, list)
        kinds += [type(message) for message, _ in content]
    return kinds


def test_a_rank_that_nobody_hears_any_more_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with zmq.Context() as context, listen(context, "tcp://127.0.0.1:0") as router:
        endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
        connection = connect_to(endpoint)
        connection._send()
        assert JoinJob in heard(router)
        # A connection of the same name that is heard of later takes its place, for ever.
        name = connection._sockets.name
        with connect(context, endpoint, name) as other:
            other.send(b"")
            assert router.poll(PATIENCE_MS)
            assert router.recv_multipart() == [name, b""]
        connection._sockets.link().send(BEAT)
        assert not router.poll(200)
        monkeypatch.setattr(shell, "RECONNECT_S", -1.0)
        connection._check_silence()
        connection._send()
        assert JoinJob in heard(router)
        connection._sockets.give_up()
        connection.close()
