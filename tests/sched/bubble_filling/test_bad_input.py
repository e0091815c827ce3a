"""What users get wrong about filling, and what they are told."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.optimus_algorithm2 import fill_optimus
from counterpoise.sched import schedule, simulate, unit_costs
from counterpoise.sched.bubble_filling.choose import scan
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step, plan_problem
from counterpoise.sched.bubble_filling.gaps import Gaps, find_gaps, with_collectives
from counterpoise.sched.bubble_filling.instance import FillProblem, make_work
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import Effort, fill_bubbles
from counterpoise.sched.bubble_filling.setup import Kernel, dump_setup, load_setup
from tests.sched.bubble_filling.exact_search import least_exposed

SETUP = replace(case_setup("A"), microbatches=4)
ONE = (Kernel("k", "compute", 3),)
NO_BACKWARD = replace(SETUP.model, layer=replace(SETUP.model.layer, backward=()))


def busy_problem(**more: Any) -> FillProblem:
    """One rank, no transfers, no collectives: the host never idles."""
    timeline = simulate(schedule("gpipe", ranks=1, microbatches=2), unit_costs(5, 10))
    gaps = find_gaps(timeline, {})
    return FillProblem(
        gaps, ((0,),), 1, make_work([ONE]), make_work([ONE]), 0, np.array([6], np.int64), **more
    )


def test_without_bubbles_encoders_go_first_and_the_note_says_so() -> None:
    filled = fill_bubbles(busy_problem(), Effort(tolerance_ns=1))
    assert (filled.before_ns, filled.after_ns) == (6, 6)
    assert filled.efficiency == 0
    assert "no bubbles: encoders run before and after" in filled.note


def test_with_bubbles_there_is_no_note() -> None:
    assert fill_bubbles(plan_problem(SETUP, EncoderPlan(2, 8), host_step(SETUP))).note == ""


def test_encoders_larger_than_the_memory() -> None:
    small = replace(SETUP, memory_bytes=20 * 10**9)
    with pytest.raises(ValueError, match=r"hold \d+\.\d GB beside .* cut them further"):
        plan_problem(small, EncoderPlan(1, 1), host_step(small))
    with pytest.raises(ValueError, match="no encoder plan is possible"):
        _ = scan(replace(SETUP, memory_bytes=10**9)).best


def test_pipelines_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match=r"3 ranks do not divide 4; use one of \[1, 2, 4\]"):
        plan_problem(SETUP, EncoderPlan(3, 8), host_step(SETUP))
    with pytest.raises(ValueError, match="3 GPUs do not divide 8"):
        plan_problem(SETUP, EncoderPlan(2, 3), host_step(SETUP))


def test_encoder_layers_that_do_not_divide() -> None:
    odd = replace(SETUP, encoders={8: (replace(SETUP.encoders[8][0], layers=47),)})
    with pytest.raises(ValueError, match="47 layers of vit-11b do not divide into 2 stages"):
        plan_problem(odd, EncoderPlan(2, 8), host_step(odd))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoders": {}}, "the profile is empty: it has no encoders"),
        ({"encoders": {8: ()}}, "the profile is empty: it has no encoders"),
        ({"stages": 0}, "stages is 0; give at least 1"),
        ({"model": NO_BACKWARD}, "the language model has no kernels"),
        ({"chunks": 7}, "80 layers do not fill 4 stages of 7 chunks"),
    ],
)
def test_setups_that_make_no_sense(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(SETUP, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "the profile: it has no field name"),
        ("[]", r"it is \[\]; expected object"),
        ("{", "not JSON"),
        ('{"name": "x"}', "it has no field stages"),
        ('{"encoders": 3}', "encoders is 3; expected object"),
    ],
)
def test_profiles_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_setup(text)


def test_a_profile_with_an_unknown_entry_or_kernel() -> None:
    text = dump_setup(SETUP)
    with pytest.raises(ValueError, match="it has the unknown field hops_ns; known are"):
        load_setup(text.replace('"hop_ns"', '"hops_ns"'))
    with pytest.raises(
        ValueError, match='resource is "network"; expected "communication" or "compute"'
    ):
        load_setup(text.replace('"communication"', '"network"'))


def test_more_microbatches_than_activations_fit() -> None:
    with pytest.raises(ValueError, match="hold 1 microbatches each, not the 2 of a step"):
        busy_problem(most=1)


def test_timelines_without_what_filling_needs() -> None:
    timeline = simulate(schedule("1f1b", ranks=2, microbatches=2), unit_costs(1, 2))
    empty = replace(timeline, ranks=((), timeline.ranks[1]))
    with pytest.raises(ValueError, match="no forward at stage 0"):
        find_gaps(empty, {})


def test_gradients_in_another_order() -> None:
    slots = tuple(
        slot._replace(what=replace(slot.what, microbatch=1 - slot.what.microbatch))
        if slot.what.kind == "B"
        else slot
        for slot in simulate(schedule("gpipe", ranks=1, microbatches=2), unit_costs(1, 2)).ranks[0]
    )
    timeline = simulate(schedule("gpipe", ranks=1, microbatches=2), unit_costs(1, 2))
    with pytest.raises(ValueError, match="another order"):
        find_gaps(replace(timeline, ranks=(slots,)), {})


def test_what_the_printed_algorithm_and_the_exact_search_do_not_know() -> None:
    with pytest.raises(ValueError, match="needs equal microbatches"):
        fill_optimus(busy_problem(fixed=True))
    late = make_work([ONE], collective_ns=1)
    with pytest.raises(ValueError, match="collectives"):
        least_exposed(replace(busy_problem(), forward=late), 1)


def test_a_case_that_the_paper_has_not() -> None:
    with pytest.raises(ValueError, match="unknown case '4096'; known are 1536"):
        case_setup("4096")


def test_gaps_are_found_in_any_first_in_program() -> None:
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        program = with_collectives(schedule(name, ranks=2, microbatches=4))
        costs = unit_costs(10, 20)
        ns = {**costs.pass_ns, "UNSHARD": 7, "REDUCE_GRAD": 9}
        gaps: Gaps = find_gaps(simulate(program, replace(costs, pass_ns=ns)), {})
        assert gaps.ranks[0].end[0] >= 7
        for one in gaps.ranks:
            assert (one.start[1:] == one.end[:-1]).all()
            assert (one.start[0], one.end[-1]) == (0, gaps.step_ns)
