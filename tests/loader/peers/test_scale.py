"""Counts what 1,296 ranks on 162 hosts ask of one store: simulated, with a clock of the test's.

    PYTHONPATH=.venv/typing .venv/bin/python -P -m tests.loader.peers.test_scale

prints the figures. Each rank posts what its samples of a step cost, and its label tokens, at a
random moment of the step's first part; it gathers both.
"""

import heapq
import json
import random
import sys

import numpy as np
import pytest

from counterpoise.balancer.run.ahead import _encode, _pack_column
from counterpoise.loader.peers.exchange import Peers
from counterpoise.loader.peers.members import this_process
from counterpoise.loader.peers.store import Entries, StoreState
from tests.loader.peers.memory_store import Clock, MemoryStore

RANKS, HOSTS = 1296, 162
# Ranks measure their share in this part of a step.
SPREAD = 0.4
# DistTrain's job of 9B parameters (docs/benchmarks/bench-layouts.md), and many small samples.
JOBS = {"1,920 samples in 6.4 s": (1920, 6.4), "64 samples a rank in 5 s": (64 * RANKS, 5.0)}


def costs_of(samples: int, draws: np.random.Generator) -> bytes:
    """Return what a rank tells of some samples: tokens of texts with up to 12 tiles."""
    tiles = draws.integers(1, 13, samples)
    tokens = 256 * tiles + draws.lognormal(5, 0.8, samples)
    return _encode(([_pack_column(tokens.astype(np.int64)), _pack_column(tiles)], {}))


def count(samples: int, step_s: float) -> dict[str, float]:
    """Return what a step of so many samples takes of the store, in each second."""
    store, clock, moments = MemoryStore(), Clock(), random.Random(1)
    members = tuple(this_process(rank, rank, str(rank % HOSTS)) for rank in range(RANKS))
    draws = np.random.default_rng(1)
    ranks, events = list[Peers](), list[tuple[float, int]]()
    for rank in range(RANKS):
        entries = Entries(store, "counterpoise/0/0123456789abcdef/loader/train/1", StoreState())
        ranks.append(Peers(members, rank, entries, clock=clock))
        events.append((clock.now + moments.random() * SPREAD * step_s, rank))
    begun, waits = clock.now, dict[int, list[str]]()
    heapq.heapify(events)
    while events:
        clock.now, rank = heapq.heappop(events)
        if rank not in waits:
            waits[rank] = ["1/costs/82944", "1/labels/17"]
            share = (rank + 1) * samples // RANKS - rank * samples // RANKS
            for key, value in zip(waits[rank], (costs_of(share, draws), b"20480"), strict=True):
                ranks[rank].post(key, value)
        values = [ranks[rank].gather(key) for key in waits[rank]]
        waits[rank] = [key for key, of in zip(waits[rank], values, strict=True) if of is None]
        if waits[rank]:
            heapq.heappush(events, (clock.now + ranks[rank].pause_s(), rank))
    assert not store.values
    return {
        **store.requests,
        "requests_per_s": round(store.requests.total() / step_s),
        "mb_per_s": round(store.n_bytes / step_s / 1e6, 1),
        "gathered_after_s": round(clock.now - begun - SPREAD * step_s, 2),
    }


@pytest.mark.parametrize("job", [pytest.param(job, marks=pytest.mark.long) for job in JOBS])
def test_the_store_of_a_large_job_is_asked_little(job: str) -> None:
    counted = count(*JOBS[job])
    assert counted["requests_per_s"] <= 5_000
    assert counted["mb_per_s"] <= 50


if __name__ == "__main__":
    sys.stdout.writelines(f"{job}: {json.dumps(count(*JOBS[job]))}\n" for job in JOBS)
