"""Trainers and their balancer on a simulated network: what holds for every seed; planted bugs."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from counterpoise.balancer.parties import run_attempt
from counterpoise.balancer.parties.messages import GiveBatch
from counterpoise.balancer.parties.parties import Parties
from counterpoise.balancer.parties.run_attempt import RankQueue, RunAttempt
from counterpoise.balancer.parties.trainer_session import TrainerSession
from tests.balancer.parties.simulated import BrokenError, Simulation

SEEDS, MANY, CHUNK = 300, 20_000, 500


def find_broken(seeds: range) -> list[str]:
    """Return what does not hold, by seed."""
    broken = []
    for seed in seeds:
        try:
            Simulation(seed).play()
        except BrokenError as error:
            broken.append(f"seed {seed}: {error}")
    return broken


def test_each_trainer_has_each_microbatch_once_whatever_fails() -> None:
    assert not find_broken(range(SEEDS))


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, MANY, CHUNK))
def test_many_seeds_keep_each_microbatch(first: int) -> None:
    assert not find_broken(range(first, min(first + CHUNK, MANY)))


def _change_wants(patch: pytest.MonkeyPatch, change: Callable[[int, int], tuple[int, int]]) -> None:
    take = RunAttempt.take

    def changed(self: RunAttempt, peer: bytes, rank: int, upto: int, have: int) -> Any:
        return take(self, peer, rank, *change(upto, have))

    patch.setattr(RunAttempt, "take", changed)


def _forget_ack(patch: pytest.MonkeyPatch) -> None:
    _change_wants(patch, lambda upto, have: (upto, min(have, 2)))


def _free_early(patch: pytest.MonkeyPatch) -> None:
    _change_wants(patch, lambda upto, have: (upto, have + 1))


def _lose_give(patch: pytest.MonkeyPatch) -> None:
    send = Parties._send

    def loses(self: Parties, peer: bytes, message: Any) -> None:
        if not isinstance(message, GiveBatch) or message.index != 1:
            send(self, peer, message)

    patch.setattr(Parties, "_send", loses)


def _never_send_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_attempt, "AGAIN_S", math.inf)


def _free_at_first_sharer(patch: pytest.MonkeyPatch) -> None:
    release = RunAttempt._release

    def released(self: RunAttempt, queue: RankQueue) -> None:
        takers = queue.takers
        fastest = max(takers, key=lambda peer: takers[peer].have, default=b"")
        queue.takers = {peer: takers[peer] for peer in takers if peer == fastest}
        release(self, queue)
        queue.takers = takers

    patch.setattr(RunAttempt, "_release", released)


def _miscount(patch: pytest.MonkeyPatch) -> None:
    count = TrainerSession.count_labels
    patch.setattr(
        TrainerSession,
        "count_labels",
        lambda self, step, tokens: count(self, step, {r: n + (r == 1) for r, n in tokens.items()}),
    )


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "an ack is forgotten": _forget_ack,
    "a ticket is freed early": _free_early,
    "a ticket is freed when one sharer has it": _free_at_first_sharer,
    "a microbatch is lost": _lose_give,
    "what the network has lost is not sent again": _never_send_again,
    "labels are miscounted": _miscount,
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_reported(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[planted](monkeypatch)
    for seed in range(200):
        try:
            Simulation(seed, latest_s=400.0).play()
        except (BrokenError, ValueError, KeyError, IndexError):
            return
    pytest.fail(f"{planted}: 200 seeds report nothing")
