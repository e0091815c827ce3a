"""Jobs of one balancer see nothing of each other: tried with keys, names, tokens and addresses."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import JoinPool, PulledFrames, PullFrames
from counterpoise.balancer.parties.messages import JoinJob
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import JobList, ListJobs, PeerRejected
from counterpoise.balancer.protocol.status_messages import GetStatus, StatusReport
from counterpoise.balancer.server.loop import new_credentials
from counterpoise.balancer.transport.keys import KeyPair, PeerKeys, peer_keys
from counterpoise.balancer.transport.naming import peer_name
from counterpoise.balancer.transport.sockets import connect, receive, send
from tests.security.hostile import JOB, LAYOUT
from tests.security.key_party import LIMIT_S, SAMPLES, Party, Peer, keygen, make

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    """A folder of keys, some of which are good for one job."""
    folder = tmp_path_factory.mktemp("bound") / "keys"
    for job in ("a", "b"):
        keygen(folder, "--job", job)
    return folder


@pytest.fixture(scope="module")
def served(bound, root):
    """A balancer with the jobs a and b, each with a worker that serves, and its batches."""
    party = Party(bound / "balancer")
    loaders = {job: make(party.address, bound / f"trainer-{job}") for job in "ab"}
    with ThreadPoolExecutor(2) as pool:
        begun = {job: pool.submit(lambda it: [*it], loader) for job, loader in loaders.items()}
        for job in "ab":
            party.work(root, f"w{job}", bound / f"worker-{job}", serves=True)
        found = {
            job: [s for batch in each.result(LIMIT_S) for s in batch] for job, each in begun.items()
        }
    yield party, party.jobs, found
    for loader in loaders.values():
        loader.close()
    party.close()


def ask(served, bound, owner, role, job, message):
    """Return what the balancer says to a message in a job's name, with a key of `owner`'s."""
    keys = peer_keys(bound / f"{role}-{owner}", role)
    with Peer(served[0].address, keys, peer_name(job, "asker"), message) as peer:
        return peer.answer()


def test_each_job_has_its_samples(served):
    assert [len(found) for found in served[2].values()] == [SAMPLES, SAMPLES]


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("trainer", JoinJob((0,), 0, 1, to_json(JOB), LAYOUT, 1)),
        ("trainer", GetStatus()),
        ("worker", JoinPool("wa", 9, "", "", b"", 0)),
        ("worker", ListJobs()),
    ],
)
def test_a_key_speaks_only_in_its_job_s_name(served, bound, role, message):
    refused = ask(served, bound, "b", role, "a", message)
    assert isinstance(refused, PeerRejected)
    assert "this key is for job b only" in refused.reason


def test_a_job_s_key_is_told_of_no_other_job(served, bound):
    assert ask(served, bound, "b", "worker", "b", ListJobs()) == JobList(("b",))
    assert isinstance(ask(served, bound, "b", "worker", "", ListJobs()), PeerRejected)
    for question in (GetStatus(), GetStatus("a")):
        status = ask(served, bound, "b", "trainer", "b", question)
        assert isinstance(status, StatusReport)
        assert [note.name for note in status.worker_statuses] == ["wb"]


def pull(server, pair, token):
    """Return what a worker answers a rank that connects with this pair, None if nothing."""
    keys = PeerKeys(KeyPair("trainer", pair.public, pair.secret), server.key)
    with zmq.Context() as context, connect(context, server.address, b"thief", keys) as socket:
        send(socket, PullFrames(1, token, 1, ()))
        wait_ms = 1000 * LIMIT_S if pair is server else 500
        received = receive(socket) if socket.poll(wait_ms) else None
        return None if received is None else received[0]


def test_a_job_s_credentials_open_no_other_job_s_worker(served):
    jobs = served[1].jobs
    a, b = (next(iter(jobs[job].admission.servers.values())) for job in "ab")
    assert a.address != b.address
    assert (a.public, a.secret) != (b.public, b.secret)
    assert isinstance(pull(a, a, a.token), PulledFrames)
    assert not pull(a, a, b.token).frames
    assert pull(a, b, a.token) is None
    assert pull(a, b, b.token) is None


def test_where_the_balancer_has_keys_nobody_serves_without():
    for has_keys in (False, True):
        jobs = PlayedJobs(1, functools.partial(new_credentials, has_keys=has_keys))
        jobs.handle(b"a|rank", JoinJob((0,), 0, 1, to_json(JOB), LAYOUT, 1))
        jobs.handle(b"a|w", JoinPool("w", 0, "", "tcp://1.2.3.4:5", b"", 0))
        (server,) = jobs.jobs["a"].admission.servers.values()
        assert server.address == ("" if has_keys else "tcp://1.2.3.4:5")
