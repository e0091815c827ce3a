"""Floods: a peer that sends what is of no use is let go, and others are served as ever."""

import contextlib
import select

import pytest
import zmq

from counterpoise.balancer.protocol.messages import DecodeDone, Ping, Pong, WorkerHello
from counterpoise.balancer.protocol.wire import encode
from counterpoise.balancer.server import conduct
from counterpoise.balancer.server.conduct import PeerConduct
from counterpoise.balancer.transport import sockets
from counterpoise.balancer.transport.disconnect import Connections
from tests.security import raw_zmtp
from tests.security.key_party import LIMIT_S, Party, Peer

JUNK = raw_zmtp.frame(b"this is no message of ours")
USELESS = raw_zmtp.frame(encode(DecodeDone(1, 1, "key", (), b"")), more=True)


@pytest.fixture
def balancer():
    party = Party()
    yield party
    party.close()


def is_closed(peer):
    """Wait until the other side has closed a connection; what it sends meanwhile is not read."""
    peer.settimeout(LIMIT_S)
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 16):
            pass
    peer.close()
    return True


def send_until_closed(peer, content, most):
    """Send until the other side closes the connection; return the bytes that were sent."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            readable, writable, _ = select.select([peer], [peer], [], LIMIT_S)
            assert readable or writable, "it is neither read nor closed"
            if readable and not peer.recv(1 << 16):
                break
            sent += peer.send(content) if writable else 0
    peer.close()
    return sent


def is_served(address):
    with Peer(address, None, b"asker") as asker:
        return isinstance(asker.answer(), Pong)


def test_a_peer_that_sends_nonsense_is_disconnected_and_logged_twice(balancer):
    for name in (b"first", b"second"):
        peer = raw_zmtp.connect(balancer.address, name)
        peer.sendall(JUNK * 20)
        assert is_closed(peer)
        assert balancer.refused(f"'{name.decode()}' is not served any more") == 1
    assert len(balancer.refusals) == 4
    assert balancer.coordinator.state.diagnostics.refused >= 2 * 9
    assert is_served(balancer.address)


def test_under_the_same_name_it_is_not_served_again_and_another_is(balancer):
    assert is_closed(_flooder(balancer.address, b"flood"))
    again = raw_zmtp.connect(balancer.address, b"flood")
    again.sendall(raw_zmtp.frame(encode(Ping())) * 500)
    assert is_closed(again)
    assert is_served(balancer.address)


def _flooder(address, name):
    peer = raw_zmtp.connect(address, name)
    peer.sendall(JUNK * 20)
    return peer


def test_a_flood_ends_long_before_it_is_over(balancer):
    peer = raw_zmtp.connect(balancer.address, b"flood")
    most = 1 << 30
    assert send_until_closed(peer, JUNK * 2000, most) < most
    assert is_served(balancer.address)


def test_useless_bytes_are_bounded(monkeypatch, balancer):
    """A payload under no lease, of a worker that is not known: well-formed, and of no use."""
    monkeypatch.setattr(conduct, "USELESS_BYTES", (float(4 << 20), 1.0))
    peer = raw_zmtp.connect(balancer.address, b"late")
    most = 1 << 30
    content = USELESS + raw_zmtp.frame(bytes(1 << 20))
    assert send_until_closed(peer, content, most) < most
    assert balancer.refused("'late' is not served any more") == 1


def test_a_worker_that_sends_nonsense_is_a_worker_no_more(balancer):
    peer = raw_zmtp.connect(balancer.address, b"worker")
    peer.sendall(raw_zmtp.frame(encode(WorkerHello("w", 0, "host", 0))) + JUNK * 20)
    assert is_closed(peer)
    assert not balancer.coordinator.state.workers


def test_nameless_peers_are_disconnected_too(balancer):
    peer = raw_zmtp.connect(balancer.address, b"")
    peer.sendall(raw_zmtp.frame(encode(Ping())) * 20)
    assert is_closed(peer)
    assert is_served(balancer.address)


@pytest.mark.parametrize("used", [True, False], ids=["used by another", "its own"])
def test_a_connection_that_is_used_by_another_is_not_closed(used):
    with zmq.Context() as context, sockets.listen(context, "tcp://127.0.0.1:*") as router:
        peer = raw_zmtp.connect(router.getsockopt_string(zmq.LAST_ENDPOINT), b"peer")
        connections = Connections(router)
        peer.sendall(JUNK)
        assert router.poll(1000 * LIMIT_S)
        name = router.recv_multipart(copy=False)[0]
        connections.note(name)
        if used:
            connections._names = dict.fromkeys(connections._names, b"other")
        connections.reset(name)
        closed = bool(select.select([peer], [], [], 0.2 if used else LIMIT_S)[0])
        assert closed is not used
        peer.close()


# --- the counts


def test_an_allowance_refills_with_time():
    counts = PeerConduct()
    assert not any(counts.record_fault(b"p", now=20.0 * n) for n in range(100))
    assert [counts.record_fault(b"q", now=0.0) for _ in range(9)] == [False] * 8 + [True]


def test_useless_messages_are_allowed_for_longer_than_faults():
    counts = PeerConduct()
    assert not any(counts.record_useless(b"p", 0, now=0.0) for _ in range(10_000))
    assert counts.record_useless(b"p", 0, now=0.0)


def test_a_ban_lasts_until_the_peer_has_been_silent():
    counts = PeerConduct()
    while not counts.record_fault(b"p", now=0.0):
        pass
    assert [counts.drops(b"p", now) for now in (1.0, 50.0, 100.0, 150.0)] == [1, 2, 3, 4]
    assert counts.drops(b"p", 150.0 + conduct.BAN_S + 1) == 0
    assert counts.has_no_fault(b"p")


def test_a_bounded_number_of_peers_is_remembered(monkeypatch):
    monkeypatch.setattr(conduct, "MAX_REMEMBERED", 10)
    counts = PeerConduct()
    for number in range(100):
        counts.record_fault(b"%d" % number, 0.0)
    assert len(counts) == 10
    assert not counts.has_no_fault(b"99")
