"""Values travel between ranks; simulated with pretended hosts, from seeds."""

import random
import struct

import pytest

from counterpoise.loader.peers import exchange
from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.members import ENDED, STOPPED, Peer
from tests.loader.peers.memory_store import Job


def gathered(peers: list[Peers], key: str, job: Job, within_s: float = 1.0) -> list[object]:
    """Return what each rank gathers, polled until all have it."""
    found: dict[int, object] = {}
    until = job.clock.now + within_s
    while len(found) < len(peers) and job.clock.now < until:
        for number, each in enumerate(peers):
            if number not in found and (values := each.gather(key)) is not None:
                found[number] = values
        job.clock.now += 0.01
    return [found.get(number) for number in range(len(peers))]


@pytest.mark.parametrize("hosts", ["aabb", "....", "a", "aa"])
def test_all_ranks_gather_the_values_of_all_in_order(hosts: str) -> None:
    job = Job(hosts)
    peers = job.meet()
    for key in ("first", "second"):
        values = tuple(f"{key} of {rank}".encode() for rank in range(len(hosts)))
        for each, value in zip(peers, values, strict=True):
            each.post(key, value)
        assert gathered(peers, key, job) == [values] * len(hosts)
        assert all(each.gather(key) is None for each in peers)
    job.close()
    assert job.left == []


def test_nothing_is_gathered_before_all_have_posted(job: Job) -> None:
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"value")
    assert gathered(peers, "key", job) == [None] * 4
    peers[3].post("key", b"late")
    assert gathered(peers, "key", job) == [(b"value", b"value", b"value", b"late")] * 4


def test_each_rank_reads_one_value_for_a_key_and_the_last_deletes_it() -> None:
    job = Job("aaaabbbbcccc")
    peers = job.meet()
    keys = sorted(job.store.values)
    job.store.requests.clear()
    for number in range(20):
        for each in peers:
            each.post(f"costs/{number}", bytes(100))
        assert None not in gathered(peers, f"costs/{number}", job)
        assert sorted(job.store.values) == keys
    # The last to post a key reads what others have appended, and has what it writes of it.
    assert job.store.requests["get"] == 20 * 12
    job.close()


def test_a_key_is_posted_once(job: Job) -> None:
    for each in job.meet():
        each.post("key", b"")
        with pytest.raises(ValueError, match="'key' was posted already"):
            each.post("key", b"")


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_turns_delivers_every_value_once(seed: int) -> None:
    draws = random.Random(seed)
    hosts = "".join(draws.choice("abc.") for _ in range(draws.randrange(1, 12)))
    job = Job(hosts)
    peers = job.meet(draws.sample(range(len(hosts)), len(hosts)))
    before = len(job.store.values)
    n_keys = 8

    def value(rank: int, key: int) -> bytes:
        return struct.pack("<qq", rank, key) * draws.choice([0, 1, 5000])

    sent = {(rank, key): value(rank, key) for rank in range(len(hosts)) for key in range(n_keys)}
    posted, got = [0] * len(hosts), [0] * len(hosts)
    for _ in range(100_000):
        job.clock.now += draws.random() * 0.02
        rank = draws.randrange(len(hosts))
        # A rank posts up to three keys ahead of what it has gathered, or has a rest.
        if posted[rank] < min(n_keys, got[rank] + 3) and draws.random() < 0.3:
            peers[rank].post(f"key/{posted[rank]}", sent[rank, posted[rank]])
            posted[rank] += 1
        elif got[rank] < n_keys:
            key = got[rank]
            if key + 1 < posted[rank] and draws.random() < 0.1:
                assert peers[rank].gather(f"key/{n_keys}") is None
            if (values := peers[rank].gather(f"key/{key}")) is not None:
                assert values == tuple(sent[each, key] for each in range(len(hosts)))
                got[rank] += 1
        if min(got) == n_keys:
            break
    assert got == [n_keys] * len(hosts)
    assert len(job.store.values) <= before
    job.close()
    assert job.left == []


def test_a_rank_gathers_late_what_all_others_have(job: Job) -> None:
    peers = job.meet()
    for number in range(30):
        for each in peers:
            each.post(f"key/{number}", bytes([number]) * 10_000)
        gathered(peers[1:], f"key/{number}", job)
    for number in range(30):
        assert peers[0].gather(f"key/{number}") == (bytes([number]) * 10_000,) * 4


def test_who_has_not_posted_is_named_by_all(job: Job) -> None:
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"")
    gathered(peers, "key", job, within_s=10.0)
    for each in peers[:3]:
        assert each.describe_missing("key").startswith("rank 3 (process 3, host ")
        assert "rank 2" not in each.describe_missing("key")
        assert each.explain_loss("key") == ""
    assert peers[3].describe_missing("key").startswith("rank 3 (process 3, host ")


@pytest.mark.parametrize("closed", [0, 3])
def test_all_are_told_with_what_error_a_rank_has_closed(job: Job, closed: int) -> None:
    peers = job.meet()
    try:
        raise ValueError("an image of no pixels")
    except ValueError:
        peers[closed].close()
    others = [each for each in peers if each is not peers[closed]]
    for each in others:
        each.post("key", b"")
    gathered(others, "key", job, within_s=2.5)
    for each in others:
        reason = each.explain_loss("key")
        assert reason.startswith(f"rank {closed} (process {closed}, host ")
        assert reason.endswith(", which has closed its loader (ValueError: an image of no pixels)")


def test_a_rank_that_has_posted_and_closed_is_not_missing(job: Job) -> None:
    peers = job.meet()
    for each in peers[:2]:
        each.post("key", b"")
    peers[0].close()
    gathered(peers[1:2], "key", job, within_s=5.0)
    assert "rank 0" not in peers[1].describe_missing("key")
    assert peers[1].explain_loss("key") == ""


@pytest.mark.parametrize("state", [STOPPED, ENDED])
def test_what_a_host_sees_of_its_processes_all_hosts_are_told(
    job: Job, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    peers = job.meet()
    monkeypatch.setattr(Peer, "state", lambda peer: state if peer.rank == 3 else "")
    # Of rank 3 only rank 2 can see it.
    for each in peers[:3]:
        each.post("key", b"")
    gathered(peers[:3], "key", job, within_s=4.0)
    for each in peers[:3]:
        assert each.describe_missing("key").endswith(f"{state}")
        assert (each.explain_loss("key") != "") == (state == ENDED)
    monkeypatch.setattr(Peer, "state", lambda _: "")
    gathered(peers[:3], "key", job, within_s=4.0)
    assert not peers[0].describe_missing("key").endswith(state)


def test_the_store_is_asked_seldom_while_others_take_their_time() -> None:
    job = Job("abcd")
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"")
    job.store.requests.clear()
    gathered(peers[:3], "key", job, within_s=10.0)
    # Every 20 ms each of three asks, and a few requests say who is missing.
    assert 1000 < sum(job.store.requests.values()) < 1800
    job.close()


def test_who_waits_for_nobody_has_nothing_to_do(job: Job) -> None:
    peers = job.meet()
    assert peers[0].pause_s() == exchange.IDLE_S
    peers[0].post("key", b"")
    assert peers[0].gather("key") is None
    assert 0 < peers[0].pause_s() < 0.01
    assert peers[0].pause_s() == exchange.IDLE_S  # nobody has asked for it since


@pytest.mark.parametrize("hosts", ["aabb", "ab.a"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_of_epochs_that_are_left_early(hosts: str, seed: int) -> None:
    draws = random.Random(seed)
    job = Job(hosts)
    peers = job.meet()
    before = sorted(job.store.values)
    for epoch in range(20):
        # Some are further ahead than others when all stop.
        posted = [draws.randrange(4) for _ in peers]
        for each, n_keys in draws.sample(list(zip(peers, posted, strict=True)), len(peers)):
            for number in range(n_keys):
                each.post(f"{epoch}/costs/{number}", bytes(9000))
                if draws.random() < 0.3:
                    each.gather(f"{epoch}/costs/{number}")
            job.clock.now += draws.random() * 0.1
        for each in draws.sample(peers, len(peers)):
            each.end(str(epoch))
            each.end(str(epoch))
        assert sorted(job.store.values) == before
        assert not any(each._waits for each in peers)
    job.close()
    assert job.left == []


def test_a_rank_that_still_reads_is_not_robbed_by_one_that_has_ended_the_group() -> None:
    job = Job("ab")
    first, second = job.meet()
    first.post("0/key", b"first")
    second.post("0/key", b"second")
    second.end("0")
    assert gathered([first], "0/key", job) == [(b"first", b"second")]
    first.end("0")
    job.close()
    assert job.left == []


def test_two_loaders_of_a_process_do_not_meet_each_others_values(job: Job) -> None:
    train, evaluation = job.meet(name="train"), job.meet(name="eval")
    for each in train:
        each.post("key", b"train")
    for each in evaluation:
        each.post("key", b"eval")
    assert gathered(train, "key", job) == [(b"train",) * 4] * 4
    assert gathered(evaluation, "key", job) == [(b"eval",) * 4] * 4


def test_a_group_that_was_ended_takes_no_keys(job: Job) -> None:
    for each in job.meet():
        each.end("0")
        with pytest.raises(ValueError, match="'0/key' is of a group that this rank has ended"):
            each.post("0/key", b"")
