"""Encoders in the bubbles, executed: what is compared, and the verdict from given times."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from benchmarks.__main__ import group
from benchmarks.encoder import pipelined, travelling
from benchmarks.encoder.cases import CASES, INSIDE, WHOLE, EncoderCase
from benchmarks.encoder.command import (
    drift_table,
    encoder_table,
    pipelined_table,
    travelling_table,
    verdict,
)
from benchmarks.encoder.drift import DRIFT, DriftRun
from benchmarks.encoder.drift import verdict as drift_verdict
from benchmarks.encoder.ranks import SleptStep
from benchmarks.encoder.travelling import (
    CONTENDERS,
    LEFT,
    PARTS,
    TOKEN_NS,
    Phases,
    TravelCase,
    draw_cases,
)
from benchmarks.encoder.travelling import verdict as travel_verdict
from benchmarks.runtime import sleeping
from benchmarks.runtime.rank_processes import RankProcesses
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.sched import PlanChange, check, simulate
from counterpoise.sched.runtime import EncoderSpec
from counterpoise.sched.runtime.encoders.spread import part_specs, parts_of
from counterpoise.tools.cli import main

CASE = WHOLE[-1]


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


@pytest.mark.parametrize("case", INSIDE, ids=lambda case: case.name)
def test_pieces_inside_passes_are_the_plan_of_kernels(case) -> None:
    assert case.planned[1] == case.kernel_level
    whole = WHOLE[INSIDE.index(case)]
    assert whole.kernel_level == pytest.approx(case.kernel_level, abs=1e-3)
    assert case.kernel_level >= whole.planned[1] - 1e-3


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


# One step, in which each rank has one tile and one token in each microbatch.
EVEN = TravelCase(*[np.ones((4, 4, 2), np.int64)] * 2)


def travel_round(waits: dict[str, tuple[float, float]]) -> list[list[dict[str, Phases]]]:
    """A round of one step: ranks that wait shares of 100 ns of encoder and 1000 ns of model."""
    rank = {
        name: Phases(round(100 * (1 - encoder)), 100, round(1000 * (1 - llm)), 1000)
        for name, (encoder, llm) in waits.items()
    }
    return [[rank] * 4]


@pytest.mark.parametrize(
    ("images", "agrees"), [((0.19, 0.09), True), ((0.21, 0.01), False), ((0.01, 0.11), False)]
)
def test_below_half_of_the_waiting_must_be_left_of_both(
    images: tuple[float, float], agrees: bool
) -> None:
    whole = {"samples": (0.4, 0.2), "samples, encoder once a step": (0.1, 0.2)}
    report = travel_verdict([EVEN], [travel_round({**whole, "images": images})] * 3)
    assert report["agrees"] is agrees
    assert report["waiting"]["samples"]["encoder"] == [0.4, 0.4, 0.4]
    assert report["left"]["samples"]["encoder"][0] == pytest.approx(images[0] / 0.4)
    once = report["left"]["samples, encoder once a step"]["encoder"][0]
    assert once == pytest.approx(images[0] / 0.1)
    said = str(travelling_table(report).caption)
    assert said == ("below half is left of both" if agrees else "more than half is left")


def test_waiting_is_modelled_from_costs_alone() -> None:
    # Of 7 tiles one rank has 4 in one microbatch; of 9 tokens one has 3, beside 2 on the others.
    loads = np.zeros((4, 4, 2), np.int64)
    loads[:, 0] = [[4, 3], [1, 2], [1, 2], [1, 2]]
    report = travel_verdict(
        [TravelCase(loads, loads)], [travel_round(dict.fromkeys(CONTENDERS, (0, 0)))]
    )
    assert report["modelled"]["samples"] == {"encoder": round(1 - 7 / 16, 4), "llm": 0.25}
    assert report["modelled"]["images"] == {"encoder": round(1 - 7 / 8, 4), "llm": 0.25}


def test_drawn_steps_have_the_same_samples_both_ways(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 12, 130)
    np.savez(tmp_path / "costs.npz", tiles=tiles, tokens=rng.integers(20, 900, 130) + 256 * tiles)
    first, second = draw_cases(tmp_path / "costs.npz", draws=2)
    for case in (first, second):
        assert case.samples.shape == (4, 4, 2)
        assert case.samples.sum(axis=(0, 1)).tolist() == case.images.sum(axis=(0, 1)).tolist()
    slowest = [case[..., 1].max(axis=0).sum() for case in (first.samples, first.images)]
    assert slowest[1] < slowest[0]


def test_by_real_costs_less_than_half_of_the_waiting_is_left(data: Path) -> None:
    cases = draw_cases(data / "metadata" / "calibrated_1200k.npz", draws=4)
    nobody = travel_round(dict.fromkeys(CONTENDERS, (0, 0)))
    model = travel_verdict(cases, [nobody])["modelled"]
    for part in PARTS:
        assert 0 < model["images"][part] < LEFT * model["samples"][part]


def test_one_clock_measures_kernels_of_all_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    clock = SimpleNamespace(perf_counter_ns=lambda: now[0])
    monkeypatch.setattr(sleeping, "time", clock)
    monkeypatch.setattr(travelling, "time", clock)
    # Sleeps end a nanosecond late, and each meeting takes a hundred.
    monkeypatch.setattr(sleeping, "_sleep", lambda ns: now.__setitem__(0, now[0] + ns + 1))
    monkeypatch.setattr(travelling.TravelRank, "_meet", lambda _: now.__setitem__(0, now[0] + 100))
    found = travelling.TravelRank(0).measure(EVEN)
    token, tile = TOKEN_NS, TOKEN_NS * TILE_TOKENS
    # Three sleeps a call: forward, backward, and one of no length for the weight.
    llm = Phases(0, 0, 4 * (token // 3 * 3 + 3), 4 * (token // 3 * 3 + 3 + 100))
    for name, calls, meetings in (("samples", 4, 8), (CONTENDERS[1], 1, 2)):
        slept = 4 * (tile // 3 * 3) + 3 * calls
        assert found[name] == Phases(slept, slept + 100 * meetings, *llm[2:])
    # Of one process nothing is exchanged; the blank tile comes first, and is slept for too.
    slept = 4 * (tile // 3 * 3) + 3 + tile // 3 + 1
    assert found["images"] == Phases(slept, slept, *llm[2:])


def test_dispatch_is_a_case_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["encoder", "--dispatch", "costs.npz", "--drift"], group=group)
    assert end.value.code == 2
    assert "are cases apart; give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("stages", [2, 4])
def test_by_real_costs_pipelines_wait_less_than_half(data: Path, stages: int) -> None:
    path = data / "metadata" / "calibrated_1200k.npz"
    cases = pipelined.pipelined_cases(path, 4, stages)
    whole, images = (pipelined.modelled(cases, name, stages) for name in pipelined.CONTENDERS)
    for part in PARTS:
        assert 0 < images[part] < LEFT * whole[part]


def test_by_real_costs_units_encode_evenly(data: Path) -> None:
    # Three encoders for two replicas, which deal whole microbatches in the order of need.
    waits = {"samples": 0.0, "images": 0.0}
    spec = EncoderSpec("vision", [nn.Identity()], {"tiles": 1}, width=1, images={"tiles": 1})
    for case in pipelined.pipelined_cases(data / "metadata" / "calibrated_1200k.npz", 4, 2):
        tiles = case.samples[..., 0].T.ravel()
        infos = [SimpleNamespace(costs={"tiles": n}) for n in case.images[..., 0].ravel().tolist()]
        parts = part_specs(parts_of([spec], 3), infos, replicas=2)
        loads = {
            "samples": [int(tiles[at::3].sum()) for at in range(3)],
            "images": [sum(each[at].shape[0] for each in parts) for at in range(3)],
        }
        for name, each in loads.items():
            waits[name] += 1 - sum(each) / (3 * max(each))
    assert 0 < waits["images"] < LEFT * waits["samples"]


def test_waiting_of_pipelines_is_modelled_by_the_simulator() -> None:
    # Two pipelines of two stages with eight microbatches each; one of the first is twice as large.
    loads = np.ones((2, 8, 2), np.int64)
    loads[0, 0] = 2
    found = {n: pipelined.modelled([TravelCase(loads, loads)], n, 2) for n in pipelined.CONTENDERS}
    # A rank encodes 4 or 5 of 17 whole, and 5 at most of them one by one.
    assert {one["encoder"] for one in found.values()} == {round(1 - 17 / 20, 4)}
    # Nine places of three for eight microbatches; the large one takes three more in both stages.
    assert found["images"]["llm"] == round(1 - (9 / 8) * 3 * 17 / 2 / (9 * 3 + 2 * 3), 4)


@pytest.mark.parametrize(("llm", "agrees"), [(0.05, True), (0.09, False)])
def test_pipelines_leave_less_than_half_of_both(llm: float, agrees: bool) -> None:
    even = np.ones((2, 8, 2), np.int64)
    # With two stages and eight microbatches an eighth of the passes' time is the schedule's own.
    waits = {"samples": (0.4, 1 - 0.84 * 8 / 9), "images": (0.1, 1 - (1 - llm) * 8 / 9)}
    report = pipelined.verdict([TravelCase(even, even)], [travel_round(waits)] * 3, stages=2)
    assert report["agrees"] is agrees
    assert report["bubble"] == round(1 / 9, 4)
    assert report["waiting"]["samples"]["llm"][0] == pytest.approx(0.16, abs=0.001)
    said = str(pipelined_table(report).caption)
    assert said == ("below half is left of both" if agrees else "more than half is left")


@pytest.mark.long
@pytest.mark.parametrize("stages", [2, 4])
def test_pipelines_run_both_ways(stages: int) -> None:
    even = np.ones((4 // stages, 4 * stages, 2), np.int64)
    with RankProcesses(4, pipelined.PipelinedRank, stages) as ranks:
        found = ranks.call("measure", TravelCase(even, even))
    for name in pipelined.CONTENDERS:
        assert all(0 < of[name].encoder_slept <= of[name].encoder for of in found)
        assert all(0 < of[name].llm_slept <= of[name].llm for of in found)
