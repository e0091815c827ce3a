"""Trainers and their balancer on a simulated network: what holds for every seed; planted bugs."""

from collections.abc import Callable
from typing import Any

import pytest

from counterpoise.balancer.parties import begun_runs
from counterpoise.balancer.parties.gives import QueuedBatch, RankQueue, Taker, pack_batch
from counterpoise.balancer.parties.messages import RunBegun
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
    take = RankQueue.take

    def changed(self: RankQueue, peer: bytes, upto: int, have: int, now: float) -> Any:
        return take(self, peer, *change(upto, have), now)

    patch.setattr(RankQueue, "take", changed)


def _forget_ack(patch: pytest.MonkeyPatch) -> None:
    _change_wants(patch, lambda upto, have: (upto, min(have, 2)))


def _free_early(patch: pytest.MonkeyPatch) -> None:
    _change_wants(patch, lambda upto, have: (upto, have + 1))


def _ignore_credit(patch: pytest.MonkeyPatch) -> None:
    _change_wants(patch, lambda upto, have: (upto + 1, have))


def _lose_give(patch: pytest.MonkeyPatch) -> None:

    def loses(batch: QueuedBatch, *more: Any) -> Any:
        return pack_batch(batch, *more) if batch.index != 1 else RunBegun(0, ())

    patch.setattr(begun_runs, "pack_batch", loses)


def _double_give(patch: pytest.MonkeyPatch) -> None:
    give = RankQueue.give

    def doubles(self: RankQueue, *more: Any) -> Any:
        batch = give(self, *more)
        return give(self, *more) if self.next == 2 else batch

    patch.setattr(RankQueue, "give", doubles)


def _never_send_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RankQueue, "_rewind", lambda *_: None)


def _free_at_first_sharer(patch: pytest.MonkeyPatch) -> None:
    give = RankQueue.give

    def lacks_one(self: RankQueue, *more: Any) -> Any:
        batch = give(self, *more)
        batch.lacking = min(batch.lacking, 1)
        return batch

    patch.setattr(RankQueue, "give", lacks_one)


def _ignore_allowance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RankQueue, "_is_near", lambda *_: True)


def _pass_over_one_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(begun_runs, "Taker", lambda peer, have: Taker(peer, have + (have > 1)))


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
    "a microbatch is given twice": _double_give,
    "what the network has lost is not sent again": _never_send_again,
    "a sharer runs ahead": _ignore_allowance,
    "credit is exceeded": _ignore_credit,
    "one that rejoins is not sent one": _pass_over_one_more,
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
