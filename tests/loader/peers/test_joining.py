"""Ranks meet in a store, in any order, and say who is missing or differs."""

import random
import re

import pytest

from counterpoise.loader import LoaderError
from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.joining import meet
from counterpoise.loader.step.ranks import Place
from tests.loader.peers.memory_store import Job, walk


@pytest.mark.parametrize("seed", range(20))
def test_ranks_meet_in_any_order(seed: int) -> None:
    draws = random.Random(seed)
    job = Job("".join(draws.choice("abc.") for _ in range(8)))
    for each in job.meet(draws.sample(range(8), 8)):
        assert [peer.rank for peer in each.members] == list(range(8))
        assert each.ranks == 8
        assert each.greetings == tuple(f"of {rank}" for rank in range(8))
    job.close()
    assert job.left == []


def test_loaders_of_one_name_are_told_apart_by_their_count(job: Job) -> None:
    first, second = job.meet(), job.meet()
    for each in first:
        each.post("key", b"first")
    for each in second:
        each.post("key", b"second")
    assert first[0].gather("key") == (b"first",) * 4
    assert first[3].gather("key") == (b"first",) * 4
    assert second[3].gather("key") == (b"second",) * 4


def test_entries_of_meetings_do_not_pile_up(job: Job) -> None:
    sizes = []
    for _ in range(5):
        for each in job.meet():
            each.close()
        sizes.append(len(job.store.values))
    assert len(set(sizes)) == 1


def test_who_does_not_come_is_named_by_all(job: Job) -> None:
    ways = {rank: job.joining(rank, timeout_s=5.0) for rank in (0, 2, 3)}
    for error in walk(ways, job.clock).values():
        assert isinstance(error, LoaderError)
        assert "rank 1 (process 1, which has opened no loader)" in str(error)
        assert "within 5 s" in str(error)


def test_who_opened_another_loader_is_named_with_its_host_and_that_loader(job: Job) -> None:
    ways = {rank: job.joining(rank, name="eval" if rank == 3 else "train") for rank in range(4)}
    found = walk(ways, job.clock)
    for rank in range(3):
        assert re.search(
            r"rank 3 \(process 3, host .*pid \d+, which has opened 'eval'\)", str(found[rank])
        )
    assert "'train'" in str(found[3])


def test_who_comes_after_another_has_given_up_does_not_start_alone(job: Job) -> None:
    ways = {rank: job.joining(rank, timeout_s=5.0) for rank in (0, 1, 2)}
    walk(ways, job.clock)
    (found,) = walk({3: job.joining(3)}, job.clock).values()
    assert isinstance(found, LoaderError)
    assert "rank 3" in str(found)


def test_other_facts_are_an_error_on_all_ranks_that_says_in_what(job: Job) -> None:
    ways = {}
    for rank in range(4):
        facts = {
            "configuration": f'{{"seed": 1, "shuffle": {str(rank != 3).lower()}}}',
            "data": "x",
        }
        ways[rank] = job.joining(rank, facts)
    found = walk(ways, job.clock)
    for rank in range(3):
        assert re.match(
            r"rank 3 \(process 3, .*\) opened loader 'train' with another configuration than rank "
            rf"{rank}: shuffle: True here, False there: give all ranks the same",
            str(found[rank]),
        )
    assert "rank 0 (process 0" in str(found[3])
    assert "shuffle: False here, True there" in str(found[3])


def test_facts_that_are_no_json_are_shown(job: Job) -> None:
    ways = {rank: job.joining(rank, {"data": "abcd"[rank]} if rank else {}) for rank in range(4)}
    found = walk(ways, job.clock)
    assert "nothing here, 'b' there" in str(found[0])
    assert "'c' here, nothing there" in str(found[2])


def test_ranks_without_a_process_group_are_told_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"rank 0 of 2, and without torch.distributed .*: call torch"
    ):
        meet(Place((0,), 2), "train", {}, 1.0)


def test_a_store_that_is_lost_is_an_error_that_names_who_runs_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: list[Peers] = job.meet()

    def lost(*_: object) -> bool:
        raise RuntimeError("Broken pipe. Exception raised from sendBytes")

    peers[0].post("key", b"")
    monkeypatch.setattr(job.store, "check", lost)
    with pytest.raises(
        LoaderError, match=r"does not answer any more \(Broken pipe\)\. It is run by rank 0 \("
    ):
        peers[0].gather("key")
