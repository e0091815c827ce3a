"""What a rank does before it waits for a microbatch."""

import math
import time
from typing import Any

import pytest

from counterpoise.balancer.protocol.messages import PeerRejected
from counterpoise.loader.remote.connection import LOOK_S
from counterpoise.loader.step.errors import LoaderError
from tests.loader.alarms import Interrupted
from tests.loader.remote.served import connect_to


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connection to nobody; `done` lists what it does."""
    made = connect_to("tcp://127.0.0.1:9")
    made._sockets.give_up()
    done: list[str] = []
    link = made._sockets.link()
    receive = link.receive

    def received() -> Any:
        done.append("receive")
        return receive()

    def pull() -> None:
        done.append("pull")

    class Poller:
        def poll(self, _: int) -> None:
            done.append("pause")
            raise Interrupted

    monkeypatch.setattr(made._puller, "turn", pull)
    monkeypatch.setattr(link, "receive", received)
    monkeypatch.setattr(link, "poller", Poller())
    made.done = done
    yield made
    monkeypatch.undo()
    made.close()


def test_what_has_arrived_is_received_before_a_wait_that_may_end_at_once(connection: Any) -> None:
    connection._looked = math.inf
    with pytest.raises(TimeoutError):
        connection.next(timeout_s=0)
    assert connection.done == ["receive", "pull"]


@pytest.mark.parametrize(("passed_s", "done"), [(0.5, []), (1.5, ["receive", "pull"])])
def test_messages_are_looked_for_rarely_while_microbatches_are_here(
    connection: Any, monkeypatch: pytest.MonkeyPatch, passed_s: float, done: list[str]
) -> None:
    monkeypatch.setattr(connection, "_has_next", lambda: True)
    monkeypatch.setattr(time, "monotonic", lambda: connection._looked + passed_s * LOOK_S)
    connection.next()
    assert connection.done == done


def test_a_failure_that_came_while_sockets_were_closed_is_raised_at_once(connection: Any) -> None:
    connection.session.receive(PeerRejected("no such file"))
    with pytest.raises(LoaderError, match="no such file"):
        connection.next()
    assert "pause" not in connection.done


def test_an_interrupted_receiving_is_made_good_before_a_rank_waits(connection: Any) -> None:
    connection._is_draining = True
    dropped = []
    connection._sockets.before_closing = lambda: dropped.append(True)
    with pytest.raises(TimeoutError):
        connection.next(timeout_s=0)
    assert dropped
    assert not connection._is_draining
