"""Encoders in the bubbles: plans hide half of them; images that travel halve the waits."""

from types import SimpleNamespace

import pytest
from torch import nn

from benchmarks.encoder import pipelined
from benchmarks.encoder.cases import CASES, INSIDE, WHOLE
from benchmarks.encoder.drift import DRIFT
from benchmarks.encoder.travelling import CONTENDERS, LEFT, PARTS, Phases, draw_cases, verdict
from counterpoise.sched import check, simulate
from counterpoise.sched.runtime import EncoderSpec
from counterpoise.sched.runtime.encoders.spread import part_specs, split_encoder

COSTS = "metadata/calibrated_1200k.npz"


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
    # the same passes, in another order
    filled, first = (sorted(map(sorted, program.ranks)) for program in plans[:2])
    assert filled == first


@pytest.mark.parametrize("case", INSIDE, ids=lambda case: case.name)
def test_pieces_inside_passes_are_the_plan_of_kernels(case) -> None:
    assert case.planned[1] == case.kernel_level
    whole = WHOLE[INSIDE.index(case)]
    assert whole.kernel_level == pytest.approx(case.kernel_level, abs=1e-3)
    assert case.kernel_level >= whole.planned[1] - 1e-3


def test_the_drift_leaves_something_to_win() -> None:
    kept, best = DRIFT.simulated_ns
    assert best < 0.97 * kept
    assert simulate(DRIFT.program(0), DRIFT.costs(0)).makespan_ns < best


def test_by_real_costs_less_than_half_of_the_waiting_is_left(data) -> None:
    cases = draw_cases(data / COSTS, draws=4)
    nobody = dict.fromkeys(CONTENDERS, Phases(100, 100, 1000, 1000))
    model = verdict(cases, [[[nobody] * 4]])["modelled"]
    for part in PARTS:
        assert 0 < model["images"][part] < LEFT * model["samples"][part]


@pytest.mark.parametrize("stages", [2, 4])
def test_by_real_costs_pipelines_wait_less_than_half(data, stages) -> None:
    cases = pipelined.pipelined_cases(data / COSTS, 4, stages)
    whole, images = (pipelined.modelled(cases, name, stages) for name in pipelined.CONTENDERS)
    for part in PARTS:
        assert 0 < images[part] < LEFT * whole[part]


def test_by_real_costs_units_encode_evenly(data) -> None:
    # Three encoders for two replicas, which deal whole microbatches in the order of need.
    waits = {"samples": 0.0, "images": 0.0}
    spec = EncoderSpec("vision", [nn.Identity()], {"tiles": 1}, width=1, images={"tiles": 1})
    for case in pipelined.pipelined_cases(data / COSTS, 4, 2):
        tiles = case.samples[..., 0].T.ravel()
        infos = [SimpleNamespace(costs={"tiles": n}) for n in case.images[..., 0].ravel().tolist()]
        parts = part_specs(split_encoder([spec], 3), infos, replicas=2)
        loads = {
            "samples": [int(tiles[at::3].sum()) for at in range(3)],
            "images": [sum(each[at].shape[0] for each in parts) for at in range(3)],
        }
        for name, each in loads.items():
            waits[name] += 1 - sum(each) / (3 * max(each))
    assert 0 < waits["images"] < LEFT * waits["samples"]
