"""Jobs of one balancer share a fleet by their weights, and see nothing of each other."""

import pytest

from tests.simulation.jobs import Fleet

WEIGHTS = {"a": 2.0, "b": 1.0, "c": 1.0}


@pytest.mark.parametrize("seed", range(3))
def test_hungry_jobs_share_a_fleet_by_their_weights(seed: int) -> None:
    fleet = Fleet(WEIGHTS, workers=4, count=6000, seed=seed)
    fleet.run(200)
    shares = fleet.run(2000)
    for job, due in (("a", 1000), ("b", 500), ("c", 500)):
        assert due * 0.9 <= shares[job] <= due * 1.1, shares
    for job, keys in fleet.keys.items():  # each its own samples, once
        assert {key.partition("-")[0] for key in keys} == {job}
        assert len(set(keys)) == len(keys)


def test_what_an_idle_job_does_not_use_the_others_have_and_it_gets_its_share_again() -> None:
    fleet = Fleet(WEIGHTS, workers=4, count=9000, seed=1)
    fleet.run(200)
    fleet.resting.add("b")
    fleet.run(1400)  # what it had asked for
    shares = fleet.run(1200)
    assert shares["b"] == 0
    assert 800 * 0.9 <= shares["a"] <= 800 * 1.1
    began = fleet.network.now
    fleet.run(600)
    alone = fleet.network.now - began
    assert alone <= 1.02 * 600 * 0.02 / 4  # nobody's time is left unused
    fleet.resting.clear()
    fleet._tell("b", fleet.ranks["b"].unanswered())
    fleet.run(300)
    shares = fleet.run(1200)
    assert 300 * 0.9 <= shares["b"] <= 300 * 1.1
