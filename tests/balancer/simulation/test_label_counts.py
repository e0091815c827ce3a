"""Ranks count the label tokens of their batches: all get the same totals, whatever goes wrong."""

import random
from dataclasses import replace

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.faults import Fault, draw_faults
from tests.simulation.rank import label_tokens, party_name
from tests.simulation.trial import LEASES_TO_END
from tests.simulation.variants import LEASE_S, RANKS, WORKERS, settings_of
from tests.simulation.world import ClusterSettings, SimulationResult

VARIANTS = ("plain", "skip", "one process", "shared")
FAULTS = 5


def counting(variant: str) -> ClusterSettings:
    settings = settings_of(variant)
    return replace(settings, job=replace(settings.job, label_tokens="batch"))


def true_totals(outcome: SimulationResult) -> dict[tuple[int, int, int], int]:
    """Return the label tokens of each step by what was delivered in it, for each process' rank."""
    steps: dict[tuple[int, int], int] = {}
    for rank in range(RANKS):
        details = zip(outcome.delivered[rank], outcome.details[rank], strict=True)
        for (step, _, keys, _), (_, _, ledger) in details:
            at = ledger.epoch, step
            steps[at] = steps.get(at, 0) + sum(map(label_tokens, keys))
    return {(seat, *at): total for seat in outcome.delivered for at, total in steps.items()}


def check(seed: int) -> None:
    variant = VARIANTS[seed % len(VARIANTS)]
    settings = counting(variant)
    parties = [
        party_name(ranks[0], n) for n in range(settings.sharers) for ranks in settings.processes
    ]
    reference = Simulation(settings, seed=0).run()
    faults = draw_faults(random.Random(seed), FAULTS, WORKERS, parties, 6.0, ())
    end = max(fault.end for fault in faults) + reference.seconds + LEASES_TO_END * LEASE_S
    outcome = Simulation(replace(settings, faults=faults, limit_s=end), seed).run()
    assert not outcome.stuck, (seed, variant, outcome.trouble)
    if not outcome.trouble:
        assert outcome.delivered == reference.delivered, seed
        assert outcome.label_totals == true_totals(outcome), seed


@pytest.mark.parametrize(
    "chunk", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(20)]
)
def test_faults_change_no_total(chunk: int) -> None:
    for seed in range(chunk * 10, (chunk + 1) * 10):
        check(seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_faults_each_step_has_its_total(variant: str) -> None:
    outcome = Simulation(counting(variant), seed=1).run()
    assert not outcome.trouble
    assert outcome.label_totals == true_totals(outcome)
    assert outcome.label_totals


@pytest.mark.parametrize("at", [0.8, 1.6, 2.4, 3.1])
def test_a_balancer_that_is_restarted_is_sent_the_counts_again(at: float) -> None:
    """One rank is ahead by its counts of a step, which the balancer had when it died."""
    faults = (
        Fault(at - 0.2, "cut", "rank 1", 1.5, "up"),
        Fault(at, "crash balancer", "balancer", 0.1),
    )
    settings = replace(counting("plain"), faults=faults, limit_s=at + 30.0)
    outcome = Simulation(settings, seed=3).run()
    assert not outcome.trouble
    assert outcome.label_totals == true_totals(outcome)


def cut_off_at_the_total(epochs: int, at: float) -> SimulationResult:
    """Run with rank 0 deaf from a time on, and a balancer that dies while it is."""
    faults = (
        Fault(at, "cut", "rank 0", 2.0, "down"),
        Fault(at + 1.5, "crash balancer", "balancer", 0.1),
    )
    settings = replace(counting("plain"), faults=faults, epochs=epochs, limit_s=at + 300.0)
    return Simulation(settings, seed=3).run()


def test_a_total_that_died_with_its_balancer_comes_from_who_goes_on_or_is_an_error() -> None:
    """Rank 1 has had the last total, rank 0 not; only in a second epoch rank 1 listens again."""
    end = Simulation(counting("plain"), seed=3).run().seconds
    ended = []
    for n in range(12):
        at = end - 0.02 * n
        outcome, going_on = cut_off_at_the_total(1, at), cut_off_at_the_total(2, at)
        assert not going_on.trouble
        assert going_on.label_totals == true_totals(going_on)
        assert not outcome.stuck
        if outcome.trouble:
            assert "ranks (1,) have not come back" in outcome.trouble
        else:
            assert outcome.label_totals == true_totals(outcome)
        ended.append(bool(outcome.trouble))
    assert any(ended)
    assert not all(ended)
