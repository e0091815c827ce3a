"""Encoders in the bubbles, executed: what is compared, and the verdict from given times."""

import pytest

from counterpoise.sched import PlanChange, check, simulate
from counterpoise.tools.bench.encoder.cases import CASES, EncoderCase
from counterpoise.tools.bench.encoder.command import drift_table, encoder_table, verdict
from counterpoise.tools.bench.encoder.drift import DRIFT, DriftRun
from counterpoise.tools.bench.encoder.drift import verdict as drift_verdict
from counterpoise.tools.bench.encoder.ranks import SleptStep

CASE = CASES[-1]


def slept(case: EncoderCase, by: dict[str, float], in_order: bool = True):
    """Two steps of each program: the simulated time by a factor, one of them a bit longer."""
    return {
        name: [SleptStep(round(ns * by.get(name, 1) * more), in_order) for more in (1, 1.0001)]
        for name, ns in case.simulated_ns().items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_plan_hides_half_of_the_encoder_and_is_what_the_simulator_says(case) -> None:
    plans, planned = case.planned
    for program in plans:
        check(program)
    times = case.simulated_ns()
    assert times["alone"] < times["filled"] < times["first"]
    hidden = 1 - (times["filled"] - times["alone"]) / case.encoder_ns
    assert hidden == pytest.approx(planned, abs=0.01)
    assert planned > 0.49
    # Kernels that a runtime can sleep for, and the paper's share of the encoder.
    assert min(case.layer_forward, case.layer_backward) >= 20
    language = case.microbatches * (case.forward + case.backward) * 1_000_000
    assert case.encoder_ns / language == pytest.approx(1 / 6)
    assert simulate(plans.first, case.costs()).makespan_ns == times["first"]


def test_the_programs_have_the_same_passes() -> None:
    plans, _ = CASE.planned
    filled, first = (sorted(map(sorted, program.ranks)) for program in plans[:2])
    assert filled == first
    assert plans.first.ranks[0][: CASE.microbatches // 2] != plans.filled.ranks[0][:4]


def test_equal_times_agree_and_others_do_not() -> None:
    times = CASE.simulated_ns()
    fine = verdict(CASE, times, slept(CASE, {}))
    assert fine["agrees"]
    assert fine["hidden_measured"] == pytest.approx(fine["hidden_planned"], abs=0.002)
    assert fine["gain_ratio"] == pytest.approx(1, abs=0.01)
    assert fine["measured_ms"]["filled"][1] == fine["simulated_ms"]["filled"]
    # A step that is 2 % longer hides 17 points less.
    assert not verdict(CASE, times, slept(CASE, {"filled": 1.02}))["agrees"]
    assert not verdict(CASE, times, slept(CASE, {"first": 1.02}))["agrees"]
    every = dict.fromkeys(times, 1.2)
    assert verdict(CASE, times, slept(CASE, every))["step_ratio"] == pytest.approx(1.2, abs=1e-3)
    assert not verdict(CASE, times, slept(CASE, {}, in_order=False))["agrees"]


def test_the_table_says_whether_all_agree() -> None:
    cell = verdict(CASE, CASE.simulated_ns(), slept(CASE, {}))
    table = encoder_table({"cases": {CASE.name: cell}, "agrees": True})
    assert "hidden shares within 5 points" in str(table.caption)
    assert "do not agree" in str(
        encoder_table({"cases": {CASE.name: cell}, "agrees": False}).caption
    )


def drift_runs(won: float, step: int = 24, digests: tuple[str, str] = ("a", "a")) -> list[DriftRun]:
    """Two ranks' runs that won a share of what can be won."""
    kept, best = DRIFT.simulated_ns
    followed = round(kept - won * (kept - best))
    changes = [(PlanChange(step, digest, kept, best, kept),) for digest in digests]
    return [DriftRun(change, [kept] * 2, [followed] * 2) for change in changes]


def test_the_drift_leaves_something_to_win() -> None:
    kept, best = DRIFT.simulated_ns
    assert best < 0.97 * kept
    assert simulate(DRIFT.program(0), DRIFT.costs(0)).makespan_ns < best


def test_a_plan_that_wins_enough_once_on_all_ranks_agrees() -> None:
    simulated = DRIFT.simulated_ns
    report = drift_verdict(DRIFT, simulated, drift_runs(0.8))
    assert (report["share_won"], report["agrees"]) == (0.8, True)
    assert "80 % won" in str(drift_table(report).caption)
    wrong = [drift_runs(0.7), drift_runs(1, step=31), drift_runs(1, digests=("a", "b"))]
    for runs in wrong:
        report = drift_verdict(DRIFT, simulated, runs)
        assert not report["agrees"]
        assert "missed" in str(drift_table(report).caption)
