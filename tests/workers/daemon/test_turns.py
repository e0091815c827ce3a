"""Jobs share a worker's time by their weights, whatever their samples take."""

import random
from collections import Counter

import pytest

from counterpoise.workers.daemon.turns import DecodeTurns


def shared(weights, work_s, pieces, seed=0, is_hungry=lambda _job, _random: True):
    """Return the seconds that each job had while all were hungry now and then."""
    turns, had, draws = DecodeTurns(), Counter(), random.Random(seed)
    for job, weight in weights.items():
        turns.add(job, weight)
    for _ in range(pieces):
        hungry = [job for job in weights if is_hungry(job, draws)]
        if not hungry:
            continue
        job = turns.next(hungry)
        assert job in hungry
        took_s = work_s[job] * draws.uniform(0.5, 1.5)
        if len(hungry) > 1:
            turns.charge(job, took_s)
        had[job] += took_s
    return had


@pytest.mark.parametrize("work_s", [{"a": 0.001, "b": 0.001}, {"a": 0.2, "b": 0.003}])
def test_it_is_time_that_is_shared_and_not_samples(work_s):
    had = shared({"a": 3.0, "b": 1.0}, work_s, 20_000)
    assert had["a"] / had.total() == pytest.approx(0.75, rel=0.03)


def test_a_job_whose_next_part_is_on_its_way_loses_nothing():
    """It has no work at one look in five, as where a balancer answers late."""
    had = shared(
        {"a": 2.0, "b": 1.0, "c": 1.0},
        dict.fromkeys("abc", 0.004),
        20_000,
        is_hungry=lambda job, draws: job != "a" or draws.random() > 0.2,
    )
    assert had["a"] / had.total() == pytest.approx(0.5, rel=0.05)


def test_one_that_was_alone_owes_nothing():
    turns = DecodeTurns()
    for job in "ab":
        turns.add(job, 1.0)
    for _ in range(100):
        assert turns.next(["a"]) == "a"  # nobody is kept waiting: not charged
    taken = []
    for _ in range(40):
        taken.append(turns.next(["a", "b"]))
        turns.charge(taken[-1], 0.02)
    assert taken.count("a") == 20


def test_a_job_that_ends_leaves_the_round():
    turns = DecodeTurns()
    for job in "ab":
        turns.add(job, 1.0)
    turns.remove("a")
    assert turns.next(["b"]) == "b"
