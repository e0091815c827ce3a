"""Whole encoder layers between the passes of any schedule."""

import random
from dataclasses import replace

import numpy as np
import pytest

from counterpoise.sched import (
    Costs,
    EncoderTimes,
    Program,
    check,
    schedule,
    simulate,
    unit_costs,
    with_encoders,
)
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step, plan_problem
from counterpoise.sched.bubble_filling.filled_program import fill_between_passes, fill_program
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import fill_bubbles
from counterpoise.sched.ir.kinds import layer_kind

NAMES = ("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "v-half", "1f1b-alg2")


def with_times(
    costs: Costs, encoders: list[EncoderTimes], width: int, ranks: int, microbatches: int
) -> Costs:
    """Return the costs with those of every encoder pass, by rank and microbatch."""
    tables: dict[str, list[list[int]]] = {}
    local = 0
    for one in encoders:
        share = len(one.forward_ns) // width
        for way, times in (("EF", one.forward_ns), ("EB", one.backward_ns)):
            for n in range(share if times else 0):
                tables[layer_kind(way, local + n)] = [
                    [
                        max(1, times[r % width * share + n] * permille // 1000)
                        for permille in one.permille or (1000,) * microbatches
                    ]
                    for r in range(ranks)
                ]
        local += share
    return replace(costs, pass_ns={**costs.pass_ns, **tables})


def drawn(draw: random.Random, width: int, microbatches: int, count: int) -> list[EncoderTimes]:
    found = []
    for _ in range(count):
        layers = width * draw.randint(1, 3)
        forward, backward = (tuple(draw.choices(range(1, 9), k=layers)) for _ in range(2))
        permille = tuple(draw.choices((0, 500, 1000, 2000), k=microbatches))
        varies, frozen = draw.random() < 0.5, draw.random() < 0.3
        found.append(EncoderTimes(forward, () if frozen else backward, permille if varies else ()))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_a_filled_program_is_sound_and_takes_no_longer_than_planned(name, seed) -> None:
    draw = random.Random(f"{name}{seed}")
    ranks = draw.choice((2, 4))
    width, count = draw.choice([w for w in (1, 2, 4) if w <= ranks]), 2 * ranks
    program, costs = schedule(name, ranks=ranks, microbatches=count), unit_costs(20, 40, 5)
    encoders = drawn(draw, width, count, draw.randint(1, 2))
    host, filled = fill_between_passes(program, costs, encoders, width=width)
    made = fill_program(host, filled)
    check(made)
    every = with_times(costs, encoders, width, ranks, count)
    assert simulate(program, costs).makespan_ns <= simulate(made, every).makespan_ns
    assert simulate(made, every).makespan_ns <= filled.step_ns
    assert [p for p in made.ranks[0] if p.kind[0] != "E"] == list(program.ranks[0])


def test_encoders_that_fit_into_the_gaps_cost_nothing() -> None:
    program, costs = schedule("1f1b", ranks=4, microbatches=16), unit_costs(20, 40)
    host, filled = fill_between_passes(program, costs, [EncoderTimes((1, 1), (2, 2))])
    # All but the first microbatch' forward and the last one's backward, which nothing can hide.
    assert filled.step_ns - host.timeline.makespan_ns == 2 + 4
    assert filled.efficiency == pytest.approx(1 - 6 / (16 * 6 / 4))


def edges_of(program: Program) -> set[str]:
    return {
        f"{e.source}>{e.target}" for e in program.edges if 0 in (e[0].microbatch, e[1].microbatch)
    }


def test_each_encoder_hands_on_its_own_results() -> None:
    encoders = [EncoderTimes((1, 1), (2, 2)), EncoderTimes((1, 1))]
    program = schedule("1f1b", ranks=2, microbatches=2)
    made = with_encoders(program, unit_costs(10, 20), encoders, width=2)
    assert made.name == "1f1b with encoders"
    assert edges_of(made) == {
        "0EF_A0>1EF_A0",
        "0EF_B0>1EF_B0",
        "1EF_A0>0F0",
        "1EF_B0>0F0",
        "0B0>1EB_A0",
        "1EB_A0>0EB_A0",
    }


def test_schedule_fill_names_the_layers_of_encoders_that_are_trained() -> None:
    setup = case_setup("22+5")
    stacks = {
        width: (replace(one, trainable=True), replace(other, trainable=False))
        for width, (one, other) in setup.encoders.items()
    }
    setup = replace(setup, encoders=stacks, microbatches=8)
    host, plan = host_step(setup), EncoderPlan(stages=8, tensor=8)
    made = fill_program(host, fill_bubbles(plan_problem(setup, plan, host)))
    check(made)
    kinds = {p.kind for p in made.ranks[3] if p.kind.startswith("E")}
    letters = [layer_kind("", n) for n in range(12)]
    assert kinds == {f"EF{x}" for x in letters} | {f"EB{x}" for x in letters[:6]}
    tops = {e.source.kind for e in made.edges if e.target.kind == "F"}
    assert tops == {"EF_F", "EF_L"}
    assert {e.target.kind for e in made.edges if e.source.kind == "B"} == {"EB_F"}


def test_sizes_that_do_not_fit_are_refused() -> None:
    program, costs = schedule("1f1b", ranks=4, microbatches=4), unit_costs(10, 20)
    with pytest.raises(ValueError, match="pipelines of 3 ranks do not divide 4"):
        with_encoders(program, costs, [EncoderTimes((1, 1, 1))], width=3)
    with pytest.raises(ValueError, match="3 layers do not divide into 2 stages"):
        with_encoders(program, costs, [EncoderTimes((1, 1, 1))], width=2)
    with pytest.raises(ValueError, match="2 costs for 4 microbatches; give all"):
        with_encoders(program, costs, [EncoderTimes((1,), permille=(1, 2))])
    with pytest.raises(ValueError, match="2 forward and 1 backward times; give one for each"):
        EncoderTimes((1, 1), (1,))


def test_microbatches_without_cost_take_the_least_time() -> None:
    program, costs = schedule("1f1b", ranks=2, microbatches=2), unit_costs(10, 20)
    _, filled = fill_between_passes(program, costs, [EncoderTimes((4,), permille=(0, 1000))])
    assert np.array_equal(filled.problem.forward.ns, [[[1], [4]]] * 2)
