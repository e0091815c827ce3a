"""Costs kept over epochs change nothing but how often samples are measured, whatever happens."""

from dataclasses import replace

import pytest

from tests.simulation.cluster import Simulation
from tests.simulation.faults import Fault
from tests.simulation.variants import COUNT, settings_of
from tests.simulation.world import ClusterSettings, SimulationResult

EPOCHS = 4
# Nothing is kept on workers' disks either: what is measured again shows.
NO_DISKS = tuple(Fault(0.0, "disk full", f"worker {slot}", 1e6) for slot in range(3))


def settings(variant: str, **changes: object) -> ClusterSettings:
    return replace(settings_of(variant), **{"epochs": EPOCHS, "faults": NO_DISKS, **changes})  # type: ignore[arg-type]


def crashes(seed: int) -> tuple[tuple[float, int], ...]:
    """Return when which worker dies, throughout all epochs."""
    return tuple((0.4 + 0.9 * n, (seed * 7 + n * n) % 3) for n in range(14))


def reference(variant: str) -> SimulationResult:
    """Return what is delivered where each epoch measures its samples anew."""
    outcome = Simulation(settings(variant, keeps_costs=False), seed=1000).run()
    assert not outcome.trouble
    return outcome


@pytest.mark.parametrize(
    "variant", ["plain", "fixed", "skip", "small", "one process", "windows, skip", "whole epochs"]
)
def test_epochs_are_those_that_are_measured_anew(variant: str) -> None:
    anew = reference(variant)
    for seed in range(8):
        kept = Simulation(settings(variant), seed=seed).run()
        lossy = Simulation(settings(variant, crashes=crashes(seed)), seed=seed).run()
        assert kept.delivered == lossy.delivered == anew.delivered
        assert kept.details == lossy.details == anew.details


@pytest.mark.parametrize("back_s", [1.0, 3.5, 6.0])
@pytest.mark.parametrize("variant", ["skip", "windows, skip", "whole epochs"])
def test_a_run_that_resumes_in_an_epoch_that_is_known_is_the_same(
    variant: str, back_s: float
) -> None:
    anew = reference(variant)
    for seed in range(4):
        back = Fault(back_s + 0.1 * seed, "crash trainer", "trainer", 0.2)
        outcome = Simulation(settings(variant, faults=(*NO_DISKS, back)), seed=seed).run()
        assert (outcome.delivered, outcome.details) == (anew.delivered, anew.details)


def test_every_sample_is_measured_once() -> None:
    plain = settings_of("plain")
    for mode in ("exact", "window", "epoch"):
        # No sample is over budget: those would be measured again for their names.
        plan = replace(plain.job.plan, budgets=(10_000, None, None), accumulate=3, mode=mode)
        job = replace(plain.job, plan=plan)
        kept = Simulation(settings("plain", job=job), seed=3).run()
        anew = Simulation(settings("plain", job=job, keeps_costs=False), seed=3).run()
        assert kept.probed == COUNT < 2 * COUNT < anew.probed
        assert kept.delivered == anew.delivered


def test_a_restarted_balancer_measures_again() -> None:
    crash = Fault(4.0, "crash balancer", "balancer", 0.3)
    outcome = Simulation(settings("fixed", faults=(*NO_DISKS, crash)), seed=1).run()
    assert COUNT < outcome.probed <= 2 * COUNT + 64
    assert outcome.delivered == reference("fixed").delivered
