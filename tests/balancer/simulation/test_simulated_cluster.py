"""The system under a simulated network: nothing lost, nothing twice, whatever the timing."""

from collections import Counter
from dataclasses import replace

import pytest

from counterpoise.balancer.protocol.job_spec import JobSpec
from tests.simulation.cluster import Simulation
from tests.simulation.faults import Fault
from tests.simulation.variants import PLAIN, PLAN, settings_of
from tests.simulation.world import ClusterSettings, SimulationResult


def job(ranks: int = 2, **changes: object) -> JobSpec:
    return replace(JobSpec(plan=replace(PLAN, ranks=ranks)), **changes)  # type: ignore[arg-type]


def settings(**changes: object) -> ClusterSettings:
    default = ClusterSettings(
        job=job(), count=150, cost=PLAIN.cost, workers=3, processes=((0,), (1,))
    )
    return replace(default, **changes)  # type: ignore[arg-type]


def keys(outcome: SimulationResult) -> Counter[str]:
    return Counter(
        key for rank in outcome.delivered.values() for _, _, names, _ in rank for key in names
    )


def test_a_run_that_never_ends_is_reported_and_not_waited_for() -> None:
    deaf = tuple(Fault(1.0, "drop", f"worker {slot}", 1e6) for slot in range(3))
    outcome = Simulation(settings(faults=deaf), seed=0).run()
    assert outcome.stuck
    assert outcome.trouble.startswith("stuck at 200.0 s: ['rank 0'")


ALL = Counter(f"k{index}" for index in range(150))


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_arrives_once_and_the_batches_do_not_depend_on_timing(seed: int) -> None:
    reference = Simulation(settings(workers=1), seed=1000).run()
    outcome = Simulation(settings(workers=1 + seed % 4, duplicate=0.2), seed=seed).run()
    assert not outcome.trouble
    assert keys(outcome) == ALL
    assert outcome.delivered == reference.delivered


@pytest.mark.parametrize("seed", range(10))
def test_workers_that_crash_change_nothing(seed: int) -> None:
    reference = Simulation(settings(), seed=1000).run()
    crashes = tuple((0.2 + 0.9 * n, (seed + n) % 3) for n in range(5))
    outcome = Simulation(settings(crashes=crashes), seed=seed).run()
    assert not outcome.trouble
    assert outcome.delivered == reference.delivered


@pytest.mark.parametrize("seed", range(10))
def test_workers_that_hang_change_nothing(seed: int) -> None:
    reference = Simulation(settings(), seed=1000).run()
    hangs = ((0.3 + 0.1 * seed, seed % 3), (1.5, (seed + 1) % 3))
    outcome = Simulation(settings(job=job(lease_s=5.0), hangs=hangs), seed=seed).run()
    assert not outcome.trouble
    assert outcome.delivered == reference.delivered


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_hangs_for_good_is_waited_for_once(seed: int) -> None:
    reference = Simulation(PLAIN, seed=seed).run()
    shorter = (Fault(3.0, "hang", "worker 0", 1.0),)
    outcome = Simulation(replace(PLAIN, hangs=((2.0, 0),), faults=shorter), seed=seed).run()
    assert not outcome.trouble
    assert outcome.delivered == reference.delivered
    assert outcome.seconds < 2 * reference.seconds  # two workers in place of three


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_byte_budget_holds(seed: int, on_error: str) -> None:
    small = job(buffer_bytes=1200, on_error=on_error)
    outcome = Simulation(settings(job=small, payload_bytes=100), seed=seed).run()
    assert not outcome.trouble
    assert keys(outcome) == ALL
    assert outcome.most_held <= 1200 + 100 * 16


def test_a_budget_too_small_for_one_microbatch_names_what_is_needed() -> None:
    outcome = Simulation(settings(job=job(buffer_bytes=300)), seed=0).run()
    assert "raise buffer_bytes to at least" in outcome.trouble


@pytest.mark.parametrize("seed", range(10))
def test_broken_samples_become_holes_and_nothing_else_moves(seed: int) -> None:
    broken, unreadable = frozenset({3, 50}), frozenset({20, 21, 149})
    outcome = Simulation(
        settings(job=job(on_error="skip"), broken=broken, unreadable=unreadable), seed=seed
    ).run()
    assert not outcome.trouble
    assert sorted(outcome.holes) == sorted(f"k{index}" for index in broken | unreadable)
    assert keys(outcome) == ALL - Counter(outcome.holes)


def test_a_broken_sample_is_named_where_errors_are_raised() -> None:
    outcome = Simulation(settings(unreadable=frozenset({20})), seed=0).run()
    assert outcome.trouble == "sample 'k20': decode failed"


@pytest.mark.parametrize("seed", range(5))
def test_samples_that_are_decoded_to_be_measured_arrive_too(seed: int) -> None:
    outcome = Simulation(settings(decode_first=True), seed=seed).run()
    assert not outcome.trouble
    assert outcome.delivered == Simulation(settings(), seed=1000).run().delivered


@pytest.mark.parametrize("seed", range(5))
def test_one_process_can_play_all_ranks(seed: int) -> None:
    outcome = Simulation(settings(processes=((0, 1),)), seed=seed).run()
    assert outcome.delivered == Simulation(settings(), seed=1000).run().delivered


@pytest.mark.parametrize("variant", ["one process", "windows, skip", "back and back"])
def test_a_run_resumes_at_every_ledger(variant: str) -> None:
    given = settings_of(variant)
    whole = Simulation(given, seed=1).run()
    ledgers = {each[2].mark: each[2] for rank in whole.details.values() for each in rank}
    for mark, ledger in sorted(ledgers.items())[:-1]:
        rest = Simulation(replace(given, start=ledger), seed=mark[1]).run()
        for process in given.processes:
            for index, rank in enumerate(process):
                had = sum((0, *each[:2], index) < mark for each in whole.delivered[rank])
                assert rest.delivered[rank] == whole.delivered[rank][had:]
                assert rest.details[rank] == whole.details[rank][had:]


@pytest.mark.parametrize("variant", ["skip", "windows, skip", "whole epochs"])
def test_ledgers_are_the_same_on_all_ranks(variant: str) -> None:
    details = Simulation(settings_of(variant), seed=1).run().details
    assert [ledger for *_, ledger in details[0]] == [ledger for *_, ledger in details[1]]


# --- disks


def test_costs_that_were_kept_are_not_measured_again() -> None:
    reference = Simulation(settings(), seed=1000).run()
    crashes = tuple((0.5 + 0.8 * n, n % 3) for n in range(5))
    full = tuple(Fault(0.0, "disk full", f"worker {slot}", 1000.0) for slot in range(3))
    back = Fault(2.0, "crash trainer", "trainer", 0.1)
    given = settings(crashes=crashes, faults=(back,), keeps_costs=False)
    kept = Simulation(given, seed=0).run()
    lost = Simulation(replace(given, faults=(*full, back)), seed=0).run()
    assert kept.delivered == lost.delivered == reference.delivered
    assert reference.probed == 150
    assert reference.probed <= kept.probed < lost.probed


@pytest.mark.parametrize("seed", range(5))
def test_without_room_for_ledgers_the_trainer_goes_back_farther(seed: int) -> None:
    reference = Simulation(settings(), seed=1000).run()
    back = Fault(3.0, "crash trainer", "trainer", 0.1)
    full = Fault(0.0, "disk full", "trainer", 100.0)
    outcome = Simulation(settings(faults=(full, back)), seed=seed, traced=True).run()
    assert outcome.delivered == reference.delivered
    simulation = Simulation(settings(faults=(full, back), limit_s=3.05), seed=seed)
    assert not simulation.run().delivered[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_that_was_replaced_and_goes_on_changes_nothing(seed: int) -> None:
    reference = Simulation(settings(), seed=1000).run()
    faults = tuple(Fault(0.3 + n, "replace", f"worker {n}", 2.0) for n in range(3))
    outcome = Simulation(settings(faults=faults), seed=seed).run()
    assert outcome.delivered == reference.delivered


@pytest.mark.parametrize("seed", range(5))
def test_asking_far_ahead_changes_nothing(seed: int) -> None:
    plan = replace(job().plan, accumulate=8)
    fixed = replace(job(), plan=plan)
    near = Simulation(settings(job=fixed, prefetch=1), seed=seed).run()
    far = Simulation(settings(job=fixed, prefetch=40), seed=seed).run()
    assert not far.trouble
    assert keys(far) == ALL
    assert far.delivered == near.delivered
