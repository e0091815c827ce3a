"""A peer cannot make libzmq abort the process that it is connected to."""

import subprocess
import sys

import pytest
import zmq

from counterpoise.balancer.transport import sockets

# A process of its own listens, since an abort would end the tests.
LISTENER = """
import contextlib
import zmq
from counterpoise.balancer.transport.sockets import listen
from tests.security.raw_zmtp import LIMIT_S, PING, connect, frame, reset

with zmq.Context() as context, listen(context, "tcp://127.0.0.1:0") as router:
    address = router.getsockopt_string(zmq.LAST_ENDPOINT)
    bad = connect(address, b"bad")
    # More than the kernel keeps: either all but that is read, or it is not read any more.
    bad.settimeout(0.3)
    with contextlib.suppress(TimeoutError):
        for _ in range(60):
            bad.sendall((frame(bytes(200)) + {between}) * 1_000)
    reset(bad)
    # When what another peer sends has arrived, the end of the first was noticed, too.
    good = connect(address, b"good")
    good.sendall(frame(b"hello"))
    received = []
    while not received or received[-1] != [b"good", b"hello"]:
        assert router.poll(1000 * LIMIT_S)
        received.append(router.recv_multipart())
    while router.poll(50):
        received.append(router.recv_multipart())
    good.close()
    print("alive")
"""


@pytest.mark.parametrize("between", ["b''", "PING"], ids=["messages", "messages and pings"])
def test_a_peer_that_sends_much_and_goes_does_not_end_the_balancer(between):
    words = [sys.executable, "-c", LISTENER.format(between=between)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


def test_no_socket_has_timers_or_limits_of_zeromqs_that_can_end_the_process():
    with zmq.Context() as context, sockets.listen(context, "tcp://127.0.0.1:*") as router:
        address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        with sockets.connect(context, address, b"peer") as dealer:
            for each in (router, dealer):
                assert each.getsockopt(zmq.HEARTBEAT_IVL) == 0
                assert each.getsockopt(zmq.RCVHWM) == 0
