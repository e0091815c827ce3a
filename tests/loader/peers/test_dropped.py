"""Ranks whose loader is dropped without close(): the others hear of it, and nothing is left."""

import gc
import os

import pytest

from counterpoise.loader.peers.exchange import Peers, delete_left
from tests.loader.peers.memory_store import Job

from .test_exchange import gathered


def dropped(peers: list[Peers], rank: int, job: Job) -> None:
    """Let nobody refer to a rank's peers any more."""
    job.forget(peers[rank])
    del peers[rank]
    gc.collect()


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_that_is_dropped_is_named_as_closed_by_all(job: Job, rank: int) -> None:
    peers = job.meet()
    dropped(peers, rank, job)
    for each in peers:
        each.post("0/key", b"")
    gathered(peers, "0/key", job, within_s=10.0)
    for each in peers:
        reason = each.explain_loss("0/key")
        assert reason.startswith(f"rank {rank} (process {rank}, host ")
        assert reason.endswith(", which has closed its loader")


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
    assert job.left == []


def test_a_finalizer_asks_the_store_for_no_answer() -> None:
    job = Job("ab")
    peers = job.meet()
    peers[0].post("0/costs", b"")
    job.store.requests.clear()
    while peers:
        dropped(peers, 0, job)
    assert dict(job.store.requests) == {"append": 2}
    delete_left()


def test_what_a_forked_child_drops_is_not_told(job: Job) -> None:
    peers = job.meet()
    asked = job.store.requests.total()
    child = os.fork()
    if not child:
        while peers:
            dropped(peers, 0, job)
        os._exit(job.store.requests.total() != asked)
    assert os.waitpid(child, 0)[1] == 0
    for each in peers:
        each.post("key", b"value")
    assert gathered(peers, "key", job) == [(b"value",) * 4] * 4
