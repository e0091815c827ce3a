"""Values travel between ranks; simulated with pretended hosts, from seeds."""

import gc
import os
import random
import struct
from collections.abc import Iterator

import pytest

from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.follower import FollowingPeers
from counterpoise.loader.peers.host_values import delete_left
from counterpoise.loader.peers.records import RELEASE_BYTES
from tests.loader.peers.memory_store import Job, held_bytes


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job("aabb")
    yield made
    made.close()


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


@pytest.mark.parametrize("hosts", ["aabb", "aaaa", "abcd", "abab", "....", "abbb", "a", "aa"])
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
    assert [key for key in job.store.values if "/loader/" in key] == []


def test_nothing_is_gathered_before_all_have_posted(job: Job) -> None:
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"value")
    assert gathered(peers, "key", job) == [None] * 4
    peers[3].post("key", b"late")
    assert gathered(peers, "key", job) == [(b"value", b"value", b"value", b"late")] * 4


def test_a_host_reads_each_value_once_and_the_last_deletes_it() -> None:
    job = Job("aaaabbbbcccc")
    peers = job.meet()
    keys = None
    job.store.requests.clear()
    for number in range(20):
        for each in peers:
            each.post(f"costs/{number}", bytes(100))
        assert None not in gathered(peers, f"costs/{number}", job)
        keys = keys or sorted(job.store.values)
        assert sorted(job.store.values) == keys
    read = {key: n for key, n in job.store.reads.items() if "/costs/" in key}
    assert len(read) == 20 * 3
    assert set(read.values()) == {2}
    assert job.store.requests["multi_get"] == 20 * 3
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
        else:
            peers[rank].poll()
        if min(got) == n_keys:
            break
    assert got == [n_keys] * len(hosts)
    assert len(job.store.values) <= before
    job.close()
    assert [key for key in job.store.values if "/loader/" in key] == []


def test_memory_of_what_all_have_read_is_given_back(job: Job) -> None:
    peers = job.meet()
    for number in range(50):
        for each in peers:
            each.post(f"key/{number}", bytes(RELEASE_BYTES // 4))
        gathered(peers, f"key/{number}", job)
        for each in peers:
            assert held_bytes(each._log) < 12 * RELEASE_BYTES  # type: ignore[attr-defined]


def test_a_follower_gathers_late_what_was_kept_for_it(job: Job) -> None:
    leader, follower, *_ = peers = job.meet()
    for number in range(30):
        for each in peers:
            each.post(f"key/{number}", bytes([number]) * 10_000)
        gathered([leader, *peers[2:]], f"key/{number}", job)
    for number in range(30):
        assert follower.gather(f"key/{number}") == (bytes([number]) * 10_000,) * 4


def test_what_the_planner_publishes_is_mapped_by_its_host(job: Job) -> None:
    leader, follower, _, elsewhere = job.meet()
    assert [leader.is_planner, follower.is_planner] == [True, False]
    plan = bytes(range(256)) * 1000
    assert follower.published("plan") is None
    leader.publish("plan", plan)
    view = follower.published("plan")
    assert view is not None
    assert view == plan
    assert follower.published("plan") is None
    assert elsewhere.published("plan") is None
    leader.poll()
    assert not leader._offers  # type: ignore[attr-defined]
    leader.publish("next", b"")
    empty = follower.published("next")
    assert empty is not None
    assert len(empty) == 0
    leader.close()
    assert view == plan
    assert follower.planner_ended()
    assert follower.planner_now().endswith(
        ", which speaks for this host, which has closed its loader"
    )
    assert leader.planner_now() == ""


def test_only_the_planner_publishes(job: Job) -> None:
    leader, follower, *_ = job.meet()
    with pytest.raises(ValueError, match="rank 1 does not plan for its host"):
        follower.publish("plan", b"")
    with pytest.raises(ValueError, match="rank 0 plans for its host"):
        leader.published("plan")


def test_a_plan_that_was_not_mapped_before_its_planner_closed_is_lost(job: Job) -> None:
    leader, follower, *_ = job.meet()
    leader.publish("plan", b"plan")
    follower.poll()
    leader.close()
    assert follower.published("plan") is None
    assert follower.planner_ended()


def test_who_has_not_posted_is_named_by_all(job: Job) -> None:
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"")
    gathered(peers, "key", job, within_s=10.0)
    for each in peers[:3]:
        assert each.why_missing("key").startswith("rank 3 (process 3, host ")
        assert "rank 2" not in each.why_missing("key")


def test_a_leader_that_is_silent_is_named_by_all(job: Job) -> None:
    peers = job.meet()
    silent = peers[2]
    for each in peers:
        if each is not silent:
            each.post("key", b"")
    others = [each for each in peers if each is not silent]
    gathered(others, "key", job, within_s=10.0)
    for each in others:
        reason = each.why_missing("key")
        assert "rank 2 (process 2" in reason
        assert "which speaks for" in reason
        assert "rank 0" not in reason
    # One that told of its follower, and then fell silent, is named with it.
    gathered(peers, "key", job, within_s=5.0)
    assert "rank 2" in peers[0].why_missing("key")


def test_a_leader_that_fell_silent_after_it_told_of_others_is_named_with_them(job: Job) -> None:
    peers = job.meet()
    for each in peers[:3]:
        each.post("key", b"")
    gathered(peers, "key", job, within_s=5.0)
    assert "rank 2" not in peers[0].why_missing("key")
    gathered(peers[:2], "key", job, within_s=20.0)
    for each in peers[:2]:
        assert "rank 3 (process 3" in each.why_missing("key")
        assert "rank 2 (process 2" in each.why_missing("key")


@pytest.mark.parametrize("closed", [2, 3])
def test_all_hosts_are_told_with_what_error_a_rank_has_closed(job: Job, closed: int) -> None:
    peers = job.meet()
    try:
        raise ValueError("an image of no pixels")
    except ValueError:
        peers[closed].close()
    for each in peers:
        if each is not peers[closed]:
            each.post("key", b"")
    gathered([each for each in peers if each is not peers[closed]], "key", job, within_s=10.0)
    for rank in (0, 1):
        reason = peers[rank].why_lost("key")
        assert reason.startswith(f"rank {closed} (process {closed}, host ")
        assert ", which has closed its loader (ValueError: an image of no pixels)" in reason


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


@pytest.mark.parametrize("hosts", ["aabb", "aaaa", "abcd", "ab.a"])
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
                if each.is_planner:
                    each.publish(f"{epoch}/plan/{number}", bytes(10))
                if draws.random() < 0.3:
                    each.gather(f"{epoch}/costs/{number}")
            job.clock.now += draws.random() * 0.1
        for each in draws.sample(peers, len(peers)):
            each.end(str(epoch))
            each.end(str(epoch))
        for each in peers:
            each.poll()
        assert sorted(job.store.values) == before
        for each in peers:
            each.poll()
            for kept in ("_rounds", "_results", "_offers", "_skipped", "_posted"):
                assert not getattr(each, kept, None), kept
    job.close()
    assert [key for key in job.store.values if "/loader/" in key] == []


def test_a_host_that_still_reads_is_not_robbed_by_one_that_has_ended_the_group() -> None:
    job = Job("ab")
    first, second = job.meet()
    first.post("0/key", b"first")
    second.post("0/key", b"second")  # the last one reads at once
    second.end("0")
    assert gathered([first], "0/key", job) == [(b"first", b"second")]
    first.end("0")
    job.close()


def test_two_loaders_of_a_process_do_not_meet_each_others_values(job: Job) -> None:
    train, evaluation = job.meet(name="train"), job.meet(name="eval")
    for each in train:
        each.post("key", b"train")
    for each in evaluation:
        each.post("key", b"eval")
    assert gathered(train, "key", job) == [(b"train",) * 4] * 4
    assert gathered(evaluation, "key", job) == [(b"eval",) * 4] * 4


def test_a_key_that_is_read_or_ended_leaves_nothing() -> None:
    job = Job("aabc")
    peers = job.meet()
    before = sorted(job.store.values)
    values = tuple(bytes([rank]) * n for rank, n in enumerate((1000, 0, 50, 200)))
    for key in ("0/costs", "0/late"):
        for each, value in zip(peers, values, strict=True):
            each.post(key, value)
        if key == "0/costs":
            assert gathered(peers, key, job) == [values] * 4
            assert sorted(job.store.values) == before
    for each in peers:
        each.end("0")
    assert sorted(job.store.values) == before
    job.close()


def test_a_group_that_was_ended_takes_no_keys(job: Job) -> None:
    for each in job.meet():
        each.end("0")
        with pytest.raises(ValueError, match="'0/key' is of a group that this rank has ended"):
            each.post("0/key", b"")


def dropped(peers: list[Peers], rank: int, job: Job) -> None:
    """Let nobody refer to a rank's peers any more."""
    job.forget(peers[rank])
    del peers[rank]
    gc.collect()


def test_a_plan_whose_planner_is_dropped_before_it_is_mapped_is_lost(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = job.meet()
    peers[0].publish("plan", b"plan")
    follower, mapped = peers[1], FollowingPeers._mapped

    def mapped_late(self: FollowingPeers, descriptor: int, size: int) -> memoryview | None:
        dropped(peers, 0, job)
        return mapped(self, descriptor, size)

    monkeypatch.setattr(FollowingPeers, "_mapped", mapped_late)
    assert follower.published("plan") is None
    assert follower.planner_ended()


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_that_is_dropped_is_named_as_closed_by_all(job: Job, rank: int) -> None:
    peers = job.meet()
    dropped(peers, rank, job)
    for each in peers:
        each.post("0/key", b"")
    gathered(peers, "0/key", job, within_s=10.0)
    for each in peers:
        reason = each.why_lost("0/key")
        assert f"rank {rank} (process {rank}, host " in reason or "speaks for" in reason
        assert ", which has closed its loader" in reason


def test_nothing_is_kept_for_a_follower_that_is_dropped(job: Job) -> None:
    peers = job.meet()
    peers[0].publish("first", b"plan")
    dropped(peers, 1, job)
    peers[0].poll()
    peers[0].publish("second", b"plan")
    assert not peers[0]._offers  # type: ignore[attr-defined]


def test_loaders_that_are_dropped_leave_no_entries_once_another_is_opened() -> None:
    job = Job("ab")
    counts = []
    for _ in range(6):
        peers = job.meet()
        peers[0].post("0/costs", b"")  # an epoch that is left early
        peers[1].post("0/costs", b"")
        while peers:
            dropped(peers, 0, job)
        counts.append(len(job.store.values))
    assert len({*counts}) == 1
    job.meet()
    job.close()
    assert [key for key in job.store.values if "/loader/" in key] == []


def test_a_finalizer_asks_the_store_for_no_answer() -> None:
    job = Job("ab")
    peers = job.meet()
    peers[0].post("0/costs", b"")
    job.store.requests.clear()
    while peers:
        dropped(peers, 0, job)
    assert dict(job.store.requests) == {"set": 2}
    delete_left()


def test_what_a_forked_child_drops_is_not_told(job: Job) -> None:
    peers = job.meet()
    child = os.fork()
    if not child:
        while peers:
            dropped(peers, 0, job)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not peers[1].planner_ended()
    for each in peers:
        each.post("key", b"value")
    assert gathered(peers, "key", job) == [(b"value",) * 4] * 4
