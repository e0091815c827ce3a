"""Faults that are planted in the pool and the parties: the simulation reports each, and ends."""

from collections.abc import Callable
from typing import Any

import pytest

from counterpoise.balancer.job.run_player import RunPlayer
from counterpoise.balancer.parties.run_attempt import RankQueue, RunAttempt
from counterpoise.balancer.pool import pool as pools
from counterpoise.balancer.pool.giving import PartGiver
from counterpoise.balancer.run.tasks import Made
from tests.balancer.job.test_job import run_setting

SEEDS = range(12)


def lose_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that waits is forgotten now and then."""
    enqueue = PartGiver.enqueue

    def forgetful(self: PartGiver, part: Any) -> None:
        if part.task.number % 16 != 9:
            enqueue(self, part)

    monkeypatch.setattr(PartGiver, "enqueue", forgetful)


def double_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A microbatch is given twice."""
    give = RunAttempt.give

    def twice(self: RunAttempt, facts: Any, made: Made) -> None:
        for _ in range(1 + (facts.step == 1)):
            give(self, facts, made)

    monkeypatch.setattr(RunAttempt, "give", twice)


def swap_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of samples say each other's places."""
    join: Any = vars(pools)["join"]

    def swapped(task: Any, *options: bool) -> Any:
        made = join(task, *options)
        pieces = [] if task.ticket is None else task.ticket.pieces
        if len(pieces) > 1:
            pieces[0].places, pieces[1].places = pieces[1].places, pieces[0].places
        return made

    monkeypatch.setattr(pools, "join", swapped)


def free_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticket is freed when it is given."""
    give = RunPlayer._give

    def eager(self: RunPlayer, run: Any, attempt: RunAttempt, rank: int) -> None:
        give(self, run, attempt, rank)
        for batch in attempt.queues[rank].batches.values():
            if batch.give.index % 5 == 3:
                self._pool.free(batch.ticket)

    monkeypatch.setattr(RunPlayer, "_give", eager)


def forget_an_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a process has a microbatch is not counted."""
    release = RunAttempt._release

    def forgetful(self: RunAttempt, queue: RankQueue) -> None:
        if queue.first % 7 != 5:
            release(self, queue)

    monkeypatch.setattr(RunAttempt, "_release", forgetful)


@pytest.mark.parametrize("plant", [lose_a_task, double_one, swap_parts, free_early, forget_an_ack])
def test_the_simulation_reports_a_planted_fault(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)  # without a fault test_job.py finds nothing wrong with these seeds
    found = 0
    for seed in SEEDS:
        try:
            run_setting(seed, faults=False)
        except (AssertionError, KeyError, AttributeError, IndexError):
            found += 1
    assert found
