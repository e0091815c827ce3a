"""Ranks as real processes at a real store: none is held up by a peer, and who is lost is named."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest

from tests.forking.popen import Popen
from tests.held_port import held_port

SCRIPT = Path(__file__).with_name("rank_process.py")
ENDS_WITHIN_S = 30.0


class Ranks:
    """The processes of a job."""

    def __init__(self, port: int, task: str, hosts: str) -> None:
        self.processes = [
            Popen(
                [sys.executable, "-W", "ignore", str(SCRIPT), task, str(port), hosts, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(len(hosts))
        ]

    def wait_until_started(self) -> None:
        """Wait for each to say so."""
        for each in self.processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "started\n"

    def outputs(self, *ranks: int) -> list[str]:
        """Return what some ranks say until they end: all when each has said something."""
        found, some = [], [self.processes[rank] for rank in ranks]
        pipes = [cast("list[IO[str]]", [each.stdin, each.stdout, each.stderr]) for each in some]
        first = [said.readline() for _, said, _ in pipes]
        for line, each, (asked, said, errors) in zip(first, some, pipes, strict=True):
            asked.close()
            out, err = line + said.read(), errors.read()
            each.wait(ENDS_WITHIN_S)
            assert "missing" in out or "gathered" in out or not out, err
            found.append(out)
        return found

    def kill(self) -> None:
        """End all."""
        for each in self.processes:
            each.kill()
            with each:  # closes its pipes, and waits
                pass


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with held_port() as port:
        made = Ranks(port, *request.param)
        yield made
        made.kill()


@pytest.mark.parametrize("ranks", [("new_group", "aa"), ("new_group", "ab")], indirect=True)
def test_a_group_is_made_while_a_thread_waits_for_a_peer(ranks: Ranks) -> None:
    out, _ = ranks.outputs(0, 1)
    assert out == "new group, waiting\ngathered 01\n"


@pytest.mark.parametrize("ranks", [("run", "aabb")], indirect=True)
@pytest.mark.parametrize("rank", [*(pytest.param(n, marks=pytest.mark.long) for n in (1, 2)), 3])
def test_a_stopped_rank_is_named_by_all_others(ranks: Ranks, rank: int) -> None:
    ranks.wait_until_started()
    time.sleep(0.5)
    stopped = ranks.processes[rank]
    os.kill(stopped.pid, signal.SIGSTOP)
    named = f"rank {rank} (process {rank}, host {socket.gethostname()}, pid {stopped.pid})"
    for out in ranks.outputs(*{0, 1, 2, 3} - {rank}):
        assert named in out


@pytest.mark.parametrize("ranks", [("run", "aabb")], indirect=True)
def test_a_stopped_rank_that_runs_the_store_is_named_by_all_others(ranks: Ranks) -> None:
    ranks.wait_until_started()
    time.sleep(0.5)
    os.kill(ranks.processes[0].pid, signal.SIGSTOP)
    for out in ranks.outputs(1, 2, 3):
        assert f"rank 0 (process 0, host {socket.gethostname()}, pid" in out


@pytest.mark.parametrize("ranks", [("late", "aab")], indirect=True)
def test_a_rank_that_does_not_come_is_named_by_all_others(ranks: Ranks) -> None:
    for out in ranks.outputs(0, 1):
        assert "rank 2 (process 2, which has opened no loader)" in out


@pytest.mark.parametrize("ranks", [("run", "aabb")], indirect=True)
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))]
)
def test_nothing_hangs_or_is_left_when_a_rank_is_killed(ranks: Ranks, seed: int) -> None:
    ranks.wait_until_started()
    draws = random.Random(seed)
    time.sleep(draws.random())
    rank = draws.randrange(4)
    lost = ranks.processes[rank]
    lost.kill()
    for out in ranks.outputs(*{0, 1, 2, 3} - {rank}):
        assert f"rank {rank} (process {rank}, host" in out
