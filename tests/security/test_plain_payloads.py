"""Payloads in the clear beside CURVE: what can be seen, what cannot be changed, what goes on."""

import contextlib
import socket
import threading
from typing import Any

import pytest
import zmq

from counterpoise.balancer.protocol.messages import (
    ClearPayloadOffer,
    HeartbeatAck,
    Ping,
    WorkerHeartbeat,
    WorkerHello,
)
from counterpoise.balancer.server import clear_payloads
from counterpoise.balancer.server import loop as serve
from counterpoise.balancer.transport import link
from counterpoise.balancer.transport.keys import peer_keys
from counterpoise.balancer.transport.sockets import connect, send
from counterpoise.tools.cli import group
from tests.security.key_party import SAMPLES, Peer, free_port, make, samples, telling_pieces

pytestmark = pytest.mark.slow

ANY_PORT = "tcp://127.0.0.1:0"


class Wire:
    """A proxy before the clear port: `spoil` changes bytes, `seen` has what passed, each way."""

    def __init__(self, spoil=lambda data: data):
        self.spoil = spoil
        self.seen, self.connections = [], []
        self.behind = 0
        self.server: Any = None
        self.works = lambda: False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """End all connections there are."""
        for each in self.connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.behind))
                self.connections += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source, target):
        record = bytearray()
        self.seen.append(record)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                record += data
                target.sendall(self.spoil(data))
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(monkeypatch):
    """Put a wire before the clear port of the next balancers; give a function that makes it."""
    made = []

    def make_wire(*arguments):
        made.append(Wire(*arguments))
        return made[-1]

    class Tapped(clear_payloads.ClearPayloadServer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            if made:
                made[-1].behind, self.port = self.port, made[-1].port
                made[-1].server = self
                made[-1].works = lambda: any(map(self.is_used_for, list(self._by_peer)))

    monkeypatch.setattr(serve, "ClearPayloadServer", Tapped)
    yield make_wire
    for each in made:
        each.close()


def spoiled(data):
    """Change a bit of what is not part of a handshake."""
    return data if len(data) < 2000 else data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def kept(data):
    return b""


def values(found):
    return sorted(
        (sample["input_ids"].tobytes(), sample["pixel_values"].tobytes()) for sample in found
    )


@pytest.fixture
def expected(party, keys, root):
    balancer = party(keys / "balancer")
    balancer.work(root, "w", keys / "worker")
    return values(samples(make(balancer.address, keys / "trainer")))


def test_samples_are_seen_on_the_wire_and_nothing_else(party, keys, root, wire):
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    balancer.work(root, "w", keys / "worker")
    balancer.wait(tapped.works)
    found = samples(make(balancer.address, keys / "trainer"))
    seen = b"".join(tapped.seen)
    payloads = [s["pixel_values"].tobytes() for s in found if s["pixel_values"].size]
    telling = [piece for payload in payloads for piece in telling_pieces(payload)]
    assert len(telling) > 10
    # The worker's connection worked before there was a job: all that it sent went there.
    assert all(piece in seen for piece in telling)
    for hidden in (b"DecodeDone", b"Batch", b"Lease", b"input_ids", b"*.tar", b"root"):
        assert hidden not in seen
    assert balancer.refusals == []


@pytest.mark.parametrize("spoil", [spoiled, kept])
def test_a_wire_that_changes_or_keeps_what_it_carries_is_done_without(
    party, keys, root, wire, expected, spoil
):
    tapped = wire(spoil)
    balancer = party(keys / "balancer", ANY_PORT)
    balancer.work(root, "w", keys / "worker")
    if spoil is spoiled:
        balancer.wait(tapped.works)
    assert values(samples(make(balancer.address, keys / "trainer"))) == expected
    assert len(expected) == SAMPLES
    assert bool(balancer.refused("changed on its way")) == (spoil is spoiled)


def test_a_wire_that_is_cut_is_done_without(party, keys, root, wire, expected):
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    balancer.work(root, "w", keys / "worker")
    loader = make(balancer.address, keys / "trainer")
    found = []
    for batch in loader:
        found += batch
        tapped.cut()
    loader.close()
    assert values(found) == expected


def test_a_worker_that_was_not_told_goes_on_under_curve(
    party, keys, root, wire, expected, monkeypatch
):
    monkeypatch.setattr(link, "SETTLED_S", 0.0)
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    balancer.work(root, "w", keys / "worker")
    balancer.wait(tapped.works)
    (peer,) = tapped.server._by_peer
    assert tapped.server.give_up(peer)
    assert values(samples(make(balancer.address, keys / "trainer"))) == expected


def test_a_balancer_that_is_started_again_offers_new_connections(party, keys, root, expected):
    address, clear = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    first, keeper = party(keys / "balancer", clear, address), party()
    keeper.work(root, "w", keys / "worker", address)
    loader = make(address, keys / "trainer")
    found = []
    for batch in loader:
        found += batch
        if len(found) == len(batch):
            first.coordinator.stop = list  # it dies without a word
            first.close()
            party(keys / "balancer", clear, address)
    loader.close()
    assert values(found) == expected


@pytest.mark.parametrize("password", [b"", b"guessed"])
def test_strangers_do_not_come_in(party, keys, wire, password):
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    address = f"tcp://127.0.0.1:{tapped.behind}"
    with zmq.Context() as context, connect(context, address, b"me", password=password) as stranger:
        send(stranger, Ping())
        balancer.wait(lambda: balancer.refusals)
        assert stranger.poll(0) == 0


def test_only_peers_with_payloads_are_offered_a_connection(party, keys):
    balancer = party(keys / "balancer", ANY_PORT)
    worker = peer_keys(keys / "worker", "worker")
    with Peer(balancer.address, worker, message=WorkerHello("w", 0, "h", 0)) as peer:
        assert isinstance(peer.answer(), ClearPayloadOffer)
    with Peer(balancer.address, worker, b"beat", WorkerHeartbeat("w", 0, number=1)) as peer:
        assert isinstance(peer.answer(), HeartbeatAck)
        assert peer.answer(0.2) is None


def test_a_revoked_key_loses_its_connection(party, keys, root, wire):
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    balancer.work(root, "w", keys / "worker")
    loader = make(balancer.address, keys / "trainer")
    next(iter(loader))
    (keys / "balancer" / "allowed" / "worker.pub").unlink()
    balancer.wait(lambda: "w" in balancer.reasons)
    assert "not allowed" in balancer.reasons["w"]
    assert any(tapped.seen)
    loader.close()


def test_without_the_package_a_peer_goes_on_under_curve(
    party, keys, root, monkeypatch, wire, expected
):
    tapped = wire()
    balancer = party(keys / "balancer", ANY_PORT)
    monkeypatch.setattr(link, "is_available", lambda: False)
    balancer.work(root, "w", keys / "worker")
    assert values(samples(make(balancer.address, keys / "trainer"))) == expected
    assert not any(tapped.seen)


def test_without_the_package_a_balancer_says_what_to_install(party, keys, monkeypatch):
    monkeypatch.setattr(clear_payloads, "is_available", lambda: False)
    with pytest.raises(ValueError, match="pip install"):
        clear_payloads.ClearPayloadServer(zmq.Context(), ANY_PORT, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "needs --keys"), (["--listen", "ipc:///tmp/x", "--keys", "KEYS"], "is for tcp, not ipc")],
)
def test_where_nothing_is_hidden_nothing_can_be_in_the_clear(keys, words, reason):
    words = [str(keys / "balancer") if word == "KEYS" else word for word in words]
    with pytest.raises(ValueError, match=reason):
        group.main(["balancer", "--plain-payloads", "5556", *words], standalone_mode=False)
