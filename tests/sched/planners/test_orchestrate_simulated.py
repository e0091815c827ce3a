"""Re-ranking: the simulator agrees with the formula, and sees what the formula leaves out."""

import pytest

from counterpoise.sched import check, simulate
from counterpoise.sched.planners.orchestration.models import read_modules
from counterpoise.sched.planners.orchestration.search import Allocation, orchestrate
from counterpoise.sched.planners.orchestration.simulated import (
    layout_program,
    plan_layouts,
    rerank,
    units_program,
)
from counterpoise.sched.planners.orchestration.units import (
    Module,
    OrchestrationProblem,
    Unit,
    iteration_ns,
    module_bytes,
)
from tests.sched.planners.shaped import preset

ENCODER = Module("encoder", 4, {1: 240}, {1: 480}, activation_bytes=4000, state_bytes=400)
BACKBONE = Module("backbone", 8, {1: 960}, {1: 1920}, activation_bytes=8000, state_bytes=800)
GENERATOR = Module("generator", 2, {1: 120}, {1: 240}, activation_bytes=2000, state_bytes=200)
JOB = OrchestrationProblem((ENCODER, BACKBONE, GENERATOR), gpus=16, batch=12, memory_bytes=10**6)
SHAPES = [
    (Unit(), Unit(pp=4), Unit()),
    (Unit(pp=2), Unit(pp=4), Unit(pp=2)),
    (Unit(dp=2), Unit(dp=2, pp=2), Unit()),
    (Unit(), Unit(dp=2, pp=2, vpp=2), Unit()),
]


def a_layout(units: tuple[Unit, ...]) -> Allocation:
    return Allocation(units, iteration_ns(JOB, units))


@pytest.mark.parametrize("units", SHAPES)
def test_programs_are_sound(units: tuple[Unit, ...]) -> None:
    check(units_program(units, 12))


@pytest.mark.parametrize("units", SHAPES[:3])
def test_the_simulated_peaks_are_the_formulas(units: tuple[Unit, ...]) -> None:
    program, costs = layout_program(JOB, a_layout(units))
    peaks = simulate(program, costs).peak_bytes
    first = 0
    for unit, bound in zip(units, module_bytes(JOB, units), strict=True):
        assert max(peaks[first : first + unit.pp]) == pytest.approx(bound, abs=unit.pp)
        first += unit.pp


@pytest.mark.parametrize("units", SHAPES[:3])
def test_the_formula_is_close_where_all_microbatches_are_alike(units: tuple[Unit, ...]) -> None:
    found = rerank(JOB, [a_layout(units)])[0]
    assert 0.8 * found.layout.formula_ns <= found.simulated_ns <= found.layout.formula_ns


def test_samples_that_differ_make_a_step_longer() -> None:
    layout = a_layout(SHAPES[0])
    even = rerank(JOB, [layout])[0].simulated_ns
    uneven = rerank(JOB, [layout], {"encoder": [0, 6000] + [600] * 10})[0].simulated_ns
    assert uneven > even


def test_the_fastest_in_simulation_comes_first() -> None:
    found = rerank(JOB, orchestrate(JOB, keep=8), {"encoder": [100, 1900, 1000]})
    times = [one.simulated_ns for one in found]
    assert len(times) > 2
    assert times == sorted(times)


@pytest.mark.parametrize("shares", [None, [1000], [0, 3000, 0, 1000], [200, 200, 200, 3400]])
def test_the_plan_is_never_slower_than_the_rigid_layout(shares: list[int] | None) -> None:
    from counterpoise.sched.planners.orchestration.baselines import rigid

    work = {"encoder": shares, "generator": shares} if shares else None
    usual = rigid(JOB)
    assert usual is not None
    best = plan_layouts(JOB, work=work)[0]
    assert best.simulated_ns <= rerank(JOB, [usual], work)[0].simulated_ns
    assert best.simulated_ns <= rerank(JOB, orchestrate(JOB, 5), work)[0].simulated_ns
    assert best.layout.formula_ns == iteration_ns(JOB, best.layout.units)


def test_work_of_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no module"):
        rerank(JOB, [], {"vocoder": [1000]})
    with pytest.raises(ValueError, match="0 or more"):
        rerank(JOB, [], {"encoder": [-1]})


def test_rounds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="give a multiple"):
        units_program((Unit(pp=4, vpp=2),), 6)


def test_models_can_be_read_from_json() -> None:
    text = '{"modules": [{"name": "backbone", "layers": 2, "forward_ns": {"1": 5}, %s}]}'
    assert read_modules(text % '"backward_ns": {"1": 9}')[0].work_ns(1) == 14
    for tail, words in (
        ('"backward_ns": {"1": 1.5}', r"modules\[0\].backward_ns.1 is 1.5; expected int"),
        ('"backward_ns": {"one": 1}', r'modules\[0\].backward_ns has the key "one"; expected int'),
        ('"backwards": 1', r"modules\[0\] has no field backward_ns"),
        (
            '"backward_ns": {"1": 1}, "slow": 1',
            r"modules\[0\] has the unknown field slow; known are",
        ),
        ('"backward_ns": {"2": 1}', "give forward and backward times for the same TP sizes"),
        ('"backward_ns": {"1": 1}, "state_bytes": "many"', 'state_bytes is "many"; expected int'),
    ):
        with pytest.raises(ValueError, match=words):
            read_modules(text % tail)


def test_a_frozen_module_costs_less() -> None:
    for name in ("encoder", "backbone", "generator"):
        at = ("encoder", "backbone", "generator").index(name)
        whole, frozen = preset("mllm-9b")[at], preset("mllm-9b", frozen=(name,))[at]
        assert frozen.work_ns(1) < whole.work_ns(1)
        assert frozen.state_bytes < whole.state_bytes
        assert frozen.optimizer_bytes == 0
    assert preset("mllm-9b", frozen=("encoder",), recompute=True)[0].backward_ns[8] == 0
