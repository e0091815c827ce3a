"""Whatever goes wrong in the simulated cluster, the same batches are delivered, and in time."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.faults import KINDS, Fault, draw_faults
from tests.simulation.trial import _keys, _reference, trial
from tests.simulation.variants import COUNT, VARIANTS, settings_of
from tests.simulation.world import ClusterSettings

CHUNK = 100


@pytest.mark.parametrize(
    "chunk", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(10)]
)
def test_faults_change_nothing(chunk: int) -> None:
    verdicts = [trial(seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
    wrong = [f"seed {v.seed}: {v.wrong}" for v in verdicts if v.wrong]
    assert not wrong, "replay with: make bench NAME=faults ARGS='--seed N'\n" + "\n".join(wrong)
    kinds = Counter(kind for v in verdicts for kind in {fault.kind for fault in v.faults})
    assert all(kinds[kind] >= CHUNK // 20 for kind in KINDS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_faults_each_sample_comes_once(variant: str) -> None:
    settings, outcome = settings_of(variant), _reference(variant)
    holes = settings.broken | settings.unreadable | settings.deadly
    good = {f"k{index}" for index in range(COUNT) if index not in holes}
    whole = range(0 if settings.leaves_at is None else 1, settings.epochs)
    given = _keys(outcome)
    assert set(given.values()) == {1}
    assert {each for each in given if each[0] in whole} == {(e, key) for e in whole for key in good}
    assert set(outcome.holes) == {f"k{index}" for index in holes}


def test_a_seed_replays_exactly() -> None:
    once, again = trial(17, traced=True), trial(17, traced=True)
    assert once.trace
    assert once == again


@pytest.mark.parametrize("seed", range(40))
def test_a_lone_worker_soon_has_again_what_was_lost_on_the_way(seed: int) -> None:
    settings = replace(settings_of("long leases"), workers=1)
    kinds = "drop", "cut", "drop", "reset", "crash worker"
    faults = draw_faults(random.Random(seed), len(kinds), 1, ("rank 0", "rank 1"), 6.0, kinds)
    limit_s = 60.0
    assert limit_s < settings.job.lease_s
    outcome = Simulation(replace(settings, faults=faults, limit_s=limit_s), seed).run()
    assert not outcome.trouble
    assert outcome.delivered == _reference("long leases").delivered


@pytest.mark.parametrize("at", [6.5, 6.6, 6.7])
def test_who_is_behind_when_another_has_had_all_from_a_new_balancer_is_not_held_up(
    at: float,
) -> None:
    """The balancer dies; who is ahead comes to the next one first, has the rest and leaves."""
    faults = (
        Fault(at - 0.3, "cut", "rank 1", 3.0, "up"),
        Fault(at, "crash balancer", "balancer", 0.1),
    )
    settings = replace(settings_of("plain"), faults=faults, limit_s=at + 15.0)
    outcome = Simulation(settings, seed=3).run()
    assert not outcome.trouble
    assert outcome.delivered == _reference("plain").delivered


# --- the byte budget


def refused_below(settings: ClusterSettings) -> int:
    """Return the smallest byte budget that is not refused."""
    budget = 1
    while True:
        job = replace(settings.job, buffer_bytes=budget)
        trouble = Simulation(replace(settings, job=job), seed=0).run().trouble
        if not trouble:
            return budget
        found = re.search(r"step \d+ needs (\d+); raise buffer_bytes to at least that", trouble)
        assert found, trouble
        budget = int(found[1])


@pytest.mark.parametrize("variant", ["plain", "skip", "one process"])
def test_the_smallest_budget_will_do_and_one_byte_less_is_refused(variant: str) -> None:
    settings = replace(settings_of(variant), payload_bytes=100)
    smallest = refused_below(settings)
    less = replace(settings, job=replace(settings.job, buffer_bytes=smallest - 1))
    assert f"needs {smallest};" in Simulation(less, seed=1).run().trouble


@pytest.mark.parametrize("variant", ["plain", "skip"])
def test_with_the_smallest_budget_a_run_waits_for_a_worker_that_stalls(variant: str) -> None:
    settings = replace(settings_of(variant), workers=1)
    job = replace(settings.job, buffer_bytes=refused_below(settings))
    stalled = (Fault(1.0, "stop", "worker 0", 600.0),)
    outcome = Simulation(replace(settings, job=job, faults=stalled, limit_s=900.0), seed=2).run()
    assert not outcome.trouble
    assert outcome.seconds > 600
    assert outcome.delivered == _reference(variant).delivered
    assert outcome.most_held <= job.buffer_bytes + settings.payload_bytes
