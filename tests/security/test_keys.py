"""Keys: who may come in, in which role, until when; and what a listener on the wire sees."""

import shutil

import pytest

from counterpoise.balancer.job.messages import JoinPool
from counterpoise.balancer.parties.messages import JoinJob
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import JobList, ListJobs, PeerRejected
from counterpoise.balancer.transport.finding import check_open_address
from counterpoise.balancer.transport.keys import (
    AllowList,
    new_pair,
    peer_keys,
    server_keys,
    write_public,
)
from counterpoise.balancer.transport.sockets import send
from counterpoise.loader import LoaderError
from tests.security.hostile import JOB, LAYOUT
from tests.security.key_party import SAMPLES, Peer, keygen, make, recorded, samples, telling_pieces

pytestmark = pytest.mark.slow

# --- on the wire


@pytest.mark.parametrize("keyed", [False, True])
def test_with_keys_a_recording_proxy_sees_no_sample_bytes(party, keys, root, keyed):
    balancer = party(keys / "balancer" if keyed else None)
    with recorded(balancer.address) as (near, seen_near), recorded(balancer.address) as (far, seen):
        balancer.work(root, "w", keys / "worker" if keyed else None, far)
        found = samples(make(near, keys / "trainer" if keyed else None))
        assert len(found) == SAMPLES
        payloads = [s["pixel_values"].tobytes() for s in found if s["pixel_values"].size]
        telling = [piece for payload in payloads for piece in telling_pieces(payload)]
        assert len(telling) > 10
        for record in (b"".join(seen), b"".join(seen_near)):
            assert len(record) > sum(map(len, payloads))
            clear = [piece in record for piece in telling]
            assert not any(clear) if keyed else all(clear)
            assert (b"input_ids" in record) != keyed
            assert (b"JoinPool" in record or b"JoinJob" in record) != keyed


# --- peers that are turned away


def test_a_peer_without_a_key_gets_nothing_and_is_counted(party, keys):
    balancer = party(keys / "balancer")
    with Peer(balancer.address, None) as peer:
        balancer.wait(lambda: balancer.refused("a peer has no key"))
        assert peer.answer(0) is None


def test_a_peer_with_a_foreign_key_gets_nothing_and_is_counted(party, keys):
    balancer = party(keys / "balancer")
    foreign = peer_keys(keys.parent / "theirs" / "worker", "worker")
    knows_us = type(foreign)(foreign.pair, peer_keys(keys / "worker", "worker").balancer)
    with Peer(balancer.address, foreign) as stranger, Peer(balancer.address, knows_us) as insider:
        balancer.wait(lambda: balancer.refused("another public key for this balancer"))
        balancer.wait(lambda: balancer.refused("a peer at 127.0.0.1 has a key"))
        assert stranger.answer(0) is insider.answer(0) is None
    assert not balancer.jobs.jobs


def test_a_peer_with_a_revoked_key_gets_nothing_more(party, keys):
    balancer = party(keys / "balancer")
    own = peer_keys(keys / "trainer", "trainer")
    with Peer(balancer.address, own) as peer:
        assert isinstance(peer.answer(), JobList)
        (keys / "balancer" / "allowed" / "trainer.pub").unlink()
        assert "not allowed" in peer.answer().reason
        send(peer.socket, ListJobs())
        assert isinstance(peer.answer(), PeerRejected)
        with Peer(balancer.address, own, b"again") as again:
            balancer.wait(lambda: balancer.refused("has a key that is not allowed"))
            assert again.answer(0) is None


def test_a_revoked_worker_ends_and_its_work_goes_to_another(party, keys, root):
    keygen(keys, "--worker", "second")
    balancer = party(keys / "balancer")
    balancer.work(root, "doomed", keys / "worker")
    loader = make(balancer.address, keys / "trainer")
    iterator = iter(loader)
    found = next(iterator)
    (keys / "balancer" / "allowed" / "worker.pub").unlink()
    balancer.wait(lambda: "not allowed" in balancer.reasons.get("doomed", ""))
    balancer.work(root, "second", keys / "second")
    found = [*found, *(sample for batch in iterator for sample in batch)]
    loader.close()
    assert len(found) == SAMPLES


def test_a_key_may_come_in_as_soon_as_it_is_on_the_list(party, keys):
    balancer = party(keys / "balancer")
    keygen(keys, "--trainer", "late")
    with Peer(balancer.address, peer_keys(keys / "late", "trainer")) as peer:
        assert isinstance(peer.answer(), JobList)


def test_a_key_speaks_only_for_its_role(party, keys):
    balancer = party(keys / "balancer")
    as_rank = peer_keys(keys / "worker", "worker")
    as_worker = peer_keys(keys / "trainer", "trainer")
    hello = JoinPool("w", 0, "", "", b"", 0)
    job = JoinJob((0,), 0, 1, to_json(JOB), LAYOUT, 1)
    with (
        Peer(balancer.address, as_rank, message=job) as rank,
        Peer(balancer.address, as_worker, b"w", hello) as worker,
    ):
        assert "a worker's key may not send JoinJob" in rank.answer().reason
        assert "a trainer's key may not send JoinPool" in worker.answer().reason
    assert not balancer.jobs.jobs


def test_a_peer_does_not_talk_to_a_balancer_that_it_does_not_know(party, keys):
    balancer = party(keys.parent / "theirs" / "balancer")
    write_public(
        keys.parent / "theirs" / "balancer" / "allowed" / "lured.pub",
        peer_keys(keys / "trainer", "trainer").pair,
    )
    with Peer(balancer.address, peer_keys(keys / "trainer", "trainer")) as peer:
        balancer.wait(lambda: balancer.refused("another public key for this balancer"))
        assert peer.answer(0) is None


# --- files and commands


def test_secrets_are_for_their_owner_only_and_are_not_printed(keys, capsys):
    keygen(keys, "--worker", "w2", "--trainer", "t2")
    told = capsys.readouterr().out
    for path in keys.glob("*/secret.key"):
        assert path.stat().st_mode & 0o777 == 0o600
        secret = path.read_text().split()[2]
        assert secret not in told
        assert secret not in repr(server_keys(keys / "balancer"))
    own = keys / "worker" / "secret.key"
    own.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others: chmod 600"):
        peer_keys(keys / "worker", "worker")


@pytest.mark.parametrize(
    "words",
    [
        [], ["--worker", "worker"], ["--worker", "balancer"], ["--worker", "../x"],
        ["--worker", "a", "--trainer", "a"],
    ],
)  # fmt: skip
def test_keygen_overwrites_nothing(keys, words):
    before = {path: path.read_bytes() for path in keys.rglob("*.*")}
    with pytest.raises(ValueError, match=r"has a key already|cannot be a name|the same name"):
        keygen(keys, *words)
    assert {path: path.read_bytes() for path in keys.rglob("*.*")} == before


def test_keys_of_another_role_are_refused(keys):
    with pytest.raises(ValueError, match="is a worker's key: give the folder of a trainer's key"):
        make("tcp://127.0.0.1:1", keys / "worker")
    with pytest.raises(ValueError, match=r"no secret\.key: make keys"):
        server_keys(keys)
    with pytest.raises(ValueError, match="is for a balancer elsewhere"):
        make(None, keys / "trainer")


@pytest.mark.parametrize("text", ["", "x", "counterpoise worker x", "counterpoise king " + 40 * "0",
                                  "counterpoise worker " + 40 * '"', 5000 * "y"])  # fmt: skip
def test_a_damaged_key_file_is_named_and_lets_nobody_in(keys, text):
    path = keys / "balancer" / "allowed" / "worker.pub"
    allowed = AllowList(path.parent)
    assert set(allowed.roles().values()) == {("worker", ""), ("trainer", "")}
    path.write_text(text)
    assert set(allowed.roles().values()) == {("trainer", "")}
    with pytest.raises(ValueError, match=r"worker\.pub is not a key file"):
        server_keys(keys / "balancer")


def test_no_list_lets_nobody_in(tmp_path):
    write_public(tmp_path / "allowed" / "a.pub", new_pair("worker"))
    allowed = AllowList(tmp_path / "allowed")
    assert len(allowed.roles()) == 1
    shutil.rmtree(tmp_path / "allowed")
    assert allowed.roles() == {}


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1", "tcp://*:1", "tcp://[::]:1", "tcp://10.1.2.3:1",
                                     "tcp://eth0:1", "tcp://localhost.evil.org:1"])  # fmt: skip
def test_an_address_that_others_reach_needs_keys_or_the_word_insecure(address):
    with pytest.raises(ValueError, match=r"counterpoise keygen.*--insecure"):
        check_open_address(address, allowed=False)
    check_open_address(address, allowed=True)


# --- what those who are turned away are told


def ways_to_be_wrong(keys):
    """(the balancer's keys, the peer's keys, what the peer is told)"""
    theirs = keys.parent / "theirs"
    mixed = keys.parent / "mixed"
    for name in ("worker", "trainer"):
        shutil.copytree(theirs / name, mixed / name)
        shutil.copy(keys / name / "balancer.pub", mixed / name)
    return {
        "no key": (keys / "balancer", None, "the balancer requires keys"),
        "no keys there": (None, keys, "does not prove that it has the key"),
        "another balancer": (keys / "balancer", theirs, "does not prove that it has the key"),
        "not allowed": (keys / "balancer", mixed, "does not allow this key"),
    }


@pytest.mark.parametrize("way", ["no key", "no keys there", "another balancer", "not allowed"])
def test_a_worker_and_a_trainer_that_cannot_come_in_are_told_why(party, keys, root, way):
    at_balancer, at_peer, reason = ways_to_be_wrong(keys)[way]
    balancer = party(at_balancer)
    balancer.work(root, "w", at_peer and at_peer / "worker")
    with pytest.raises(LoaderError, match=reason):
        samples(make(balancer.address, at_peer and at_peer / "trainer"))
    balancer.wait(lambda: reason in balancer.reasons.get("w", ""))
