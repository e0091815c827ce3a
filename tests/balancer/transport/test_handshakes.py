"""What a peer concludes from handshakes that fail: nothing, where it is the network's fault."""

import errno
import socket
import threading
import time

import pytest
import zmq

from counterpoise.balancer.protocol.messages import ListJobs
from counterpoise.balancer.transport.sockets import (
    FAILED_HANDSHAKES,
    Handshakes,
    connect,
    listen,
    send,
)

LIMIT_S = 20.0


def wait_until(happened):
    deadline, bell = time.monotonic() + LIMIT_S, threading.Event()
    while not happened():
        assert time.monotonic() < deadline
        bell.wait(0.02)


def test_connections_that_are_ended_in_the_handshake_refuse_nobody():
    """As by a proxy whose balancer is being restarted; then the balancer is there again."""
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as between:
        address = f"tcp://127.0.0.1:{between.getsockname()[1]}"
        with connect(context, address, b"peer", monitored=Handshakes.EVENTS) as peer:
            handshakes = Handshakes(peer, keyed=False)
            for _ in range(FAILED_HANDSHAKES + 2):
                between.accept()[0].close()
                assert handshakes.rejection_reason() == ""
            between.close()
            with listen(context, address) as balancer:
                send(peer, ListJobs())
                wait_until(lambda: balancer.poll(0))
            assert handshakes.rejection_reason() == ""
            handshakes.close()


def test_a_socket_that_cannot_be_made_whole_is_closed(monkeypatch):
    """As where files run out: an open one would hold up the end of its context for ever."""
    made = []

    def fails(socket, _events):
        made.append(socket)
        raise zmq.ZMQError(errno.EMFILE)

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", fails)
    with zmq.Context() as context, pytest.raises(OSError, match="too many open files"):
        connect(context, "tcp://127.0.0.1:1", b"peer", monitored=Handshakes.EVENTS)
    assert [each.closed for each in made] == [True]
