"""Floods: a peer that sends what is of no use is let go, and others are served as ever."""

import contextlib
import select
import time

import pytest
import zmq

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.protocol.messages import Ping, Pong, WorkerHello
from counterpoise.balancer.protocol.parts import DecodedItem
from counterpoise.balancer.protocol.payload_messages import DecodeDone
from counterpoise.balancer.server import conduct, loop
from counterpoise.balancer.server.conduct import ConnectionGate, PeerConduct
from counterpoise.balancer.server.loop import DISCONNECT_EVERY, open_shell
from counterpoise.balancer.transport import sockets
from counterpoise.balancer.transport.wire import encode
from tests.security import raw_zmtp
from tests.security.key_party import LIMIT_S, Party, Peer

JUNK = raw_zmtp.frame(b"this is no message of ours")
MANY = 20_000
USELESS = raw_zmtp.frame(encode(DecodeDone(1, (DecodedItem(1, "key", (), b"", 0, 0),))), more=True)


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


def test_a_peer_that_sends_nonsense_is_disconnected_and_logged_once(balancer):
    for name in (b"first", b"second"):
        peer = raw_zmtp.connect(balancer.address, name)
        peer.sendall(JUNK * 20)
        assert is_closed(peer)
        assert balancer.refused(f"'{name.decode()}' is not served") == 1
    assert len(balancer.refusals) == 2
    assert balancer.refused("(last: not a msgpack header") == 2
    assert balancer.coordinator.diagnostics.refused >= 2 * 9
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
    assert balancer.refused("'late' is not served") == 1


def test_a_worker_that_sends_nonsense_is_a_worker_no_more(balancer):
    peer = raw_zmtp.connect(balancer.address, b"worker")
    peer.sendall(raw_zmtp.frame(encode(WorkerHello("w", 0, "host", 0))) + JUNK * 20)
    assert is_closed(peer)
    assert not balancer.coordinator.workers


def test_nameless_peers_are_disconnected_too(balancer):
    peer = raw_zmtp.connect(balancer.address, b"")
    peer.sendall(raw_zmtp.frame(encode(Ping())) * 20)
    assert is_closed(peer)
    assert is_served(balancer.address)


# --- connections are let in one after another


@pytest.fixture
def shell():
    """A balancer's loop that turns only when it is told to."""
    lines = []
    opening = open_shell(
        Coordinator(), lambda context: sockets.listen(context, "tcp://127.0.0.1:*"), None,
        lines.append,
    )  # fmt: skip
    with opening as opened:
        yield opened


def turn_until(shell, fact):
    """Turn until a fact is true; what it waits for is on its way."""
    deadline = time.monotonic() + LIMIT_S
    while not fact():
        assert time.monotonic() < deadline
        shell.turn()


def introduced(shell, name):
    """Return a peer that has said who it is, and waits for the answer."""
    address = shell.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    peer = raw_zmtp.greet(address)
    peer.sendall(raw_zmtp.ready(name))
    return peer


@pytest.mark.parametrize("used", [True, False], ids=["used by another", "its own"])
def test_a_connection_that_is_used_by_another_is_not_closed(monkeypatch, shell, used):
    peer = let_in(shell, b"peer")
    peer.recv(1 << 10)
    peer.sendall(JUNK)
    assert shell.socket.poll(1000 * LIMIT_S)
    name = shell.socket.recv_multipart(copy=False)[0]
    shell.connections.note(name)
    if used:  # a later one, of the same descriptor
        monkeypatch.setattr(loop, "serial_of", lambda _: 2)
        shell.connections.note(name)
        monkeypatch.undo()
    shell.connections.reset(name)
    closed = bool(select.select([peer], [], [], 0.2 if used else LIMIT_S)[0])
    assert closed is not used
    peer.close()


def test_who_is_banned_is_disconnected_over_a_descriptor_that_another_had(shell):
    """Numbers of descriptors are used again, also while messages of the former use wait."""
    flood = let_in(shell, b"flood")
    flood.sendall(JUNK * 20)
    turn_until(shell, lambda: has_ended(flood))
    for name in (b"other", b"flood"):
        peer = let_in(shell, name)
        peer.sendall(raw_zmtp.frame(encode(Ping())) * 2 * DISCONNECT_EVERY)
        if name == b"other":
            peer.close()
    turn_until(shell, lambda: has_ended(peer))


def test_who_was_banned_with_all_its_answers_on_their_way_is_told_why(shell):
    flood = let_in(shell, b"flood")
    flood.sendall(JUNK * 20)
    turn_until(shell, lambda: has_ended(flood))
    peer = let_in(shell, b"flood")
    peer.recv(1 << 10)
    peer.sendall(raw_zmtp.frame(encode(Ping())) * 40)
    turn_until(shell, lambda: is_let_in(peer))
    assert b"PeerRejected" in peer.recv(1 << 16)
    peer.close()


def let_in(shell, name):
    """Return a peer that is let in."""
    peer = introduced(shell, name)
    turn_until(shell, lambda: is_let_in(peer))
    return peer


def has_ended(peer):
    """Whether a connection has been closed; what has come over it is read."""
    with contextlib.suppress(ConnectionError):
        while is_let_in(peer):
            if not peer.recv(1 << 16):
                return True
        return False
    return True


def is_let_in(peer):
    return bool(select.select([peer], [], [], 0)[0])


def test_nobody_comes_in_while_the_balancer_does_something_else(shell):
    """What a connection delivers meanwhile would be held in memory, of each one that is opened."""
    peers = [introduced(shell, b"peer %d" % n) for n in range(3)]
    assert not select.select(peers, [], [], 0.3)[0]
    turn_until(shell, lambda: all(map(is_let_in, peers)))
    for peer in peers:
        peer.close()


def test_nobody_comes_in_before_a_flood_has_been_read(shell):
    flood = let_in(shell, b"flood")
    flood.recv(1 << 10)
    flood.sendall(JUNK * MANY + raw_zmtp.PING)
    flood.settimeout(LIMIT_S)
    assert flood.recv(1)  # the answer to the ping: all of the flood is in memory
    other = introduced(shell, b"other")
    refused = shell.coordinator.diagnostics
    turn_until(shell, lambda: is_let_in(other))
    assert refused.refused > MANY  # with the line that says so
    for peer in (flood, other):
        peer.close()


def test_who_is_gone_before_it_is_let_in_brings_nothing_down(shell):
    """Its ping would be answered over a connection that has ended (ADR 16)."""
    for n in range(20):
        peer = introduced(shell, b"gone %d" % n)
        peer.sendall(raw_zmtp.PING * 3 + JUNK)
        raw_zmtp.reset(peer)
    other = introduced(shell, b"other")
    turn_until(shell, lambda: is_let_in(other))
    other.close()


def test_the_gate_is_closed_while_what_waits_is_to_be_dropped():
    gate = ConnectionGate()
    for now in range(600):  # slowly: there is no debt
        gate.record_dropped(float(now))
    gate.end_turn(1000, is_more=True)
    assert gate.closed_for_s(999.0) > 0
    gate.end_turn(1000, is_more=True)
    assert gate.closed_for_s(999.0) == 0


def test_the_gate_opens_again_when_the_debt_is_paid():
    gate = ConnectionGate()
    for _ in range(100_000):
        gate.record_dropped(now=0.0)
    assert gate.closed_for_s(0.0) == 3.0
    assert gate.closed_for_s(3.0) == 0.0


# --- the counts


def test_an_allowance_refills_with_time():
    counts = PeerConduct()
    assert not any(counts.record_fault(b"p", now=20.0 * n) for n in range(100))
    assert [counts.record_fault(b"q", now=0.0) for _ in range(9)] == [False] * 8 + [True]


def test_of_a_flood_there_is_one_line_and_of_a_few_faults_one():
    counts = PeerConduct()
    for n in range(9):
        counts.record_fault(b"flood", now=0.1 * n, reason="junk")
    counts.record_fault(b"few", now=0.0, reason="too old")
    counts.record_fault(b"few", now=0.5, reason="too old again")
    assert counts.lines_due(now=0.9) == []
    assert counts.lines_due(now=1.0) == ["too old"]
    assert counts.lines_due(now=9.0) == []


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
    assert counts.last_fault(b"p") == ""


def test_a_bounded_number_of_peers_is_remembered(monkeypatch):
    monkeypatch.setattr(conduct, "MAX_REMEMBERED", 10)
    counts = PeerConduct()
    for number in range(100):
        counts.record_fault(b"%d" % number, 0.0, "junk")
    assert len(counts) == 10
    assert (counts.last_fault(b"99"), counts.last_fault(b"9")) == ("junk", "")
