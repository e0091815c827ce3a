"""Encoder passes beside any schedule's: loss and all gradients are those of one process."""

import copy
import random
from functools import cache

import pytest
from torch import nn

from counterpoise.sched import Program, check, parse_program
from counterpoise.sched.bubble_filling.encoder_plans import EncoderPlan, host_step, plan_problem
from counterpoise.sched.bubble_filling.filled_program import fill_program
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.search import fill_bubbles
from tests.sched.runtime.encoders.models import (
    Model,
    encoded,
    make_model,
    make_samples,
    reference,
    run_program,
)
from tests.sched.runtime.models import worst_error

FROZEN = ("nothing", "encoder", "language model", "encoder but its last layer", "first stage")


def flat(encoders: list[list[nn.Module]]) -> list[nn.Module]:
    return [layer for layers in encoders for layer in layers]


def freeze(model: Model, frozen: str) -> None:
    pieces = {
        "nothing": [],
        "encoder": model.encoders[0],
        "second encoder": model.encoders[-1],
        "language model": model.stages,
        "encoder but its last layer": model.encoders[0][:-1],
        "first stage": model.stages[:1],
    }
    for piece in pieces[frozen]:
        piece.requires_grad_(False)


def compare(program: Program, width: int, layers: tuple[int, ...], frozen: str = "nothing") -> None:
    """Run a program with a copy of the encoders on each encoder pipeline, and one process.

    `layers`: of each encoder on a rank.
    """
    check(program)
    model = make_model([width * count for count in layers], program.stages)
    freeze(model, frozen)
    expected = copy.deepcopy(model)
    copies = [copy.deepcopy(model.encoders) for _ in range(len(program.ranks) // width)]
    samples = make_samples(program.microbatches)
    wanted = reference(expected, samples)
    models = [Model(encoders, model.stages) for encoders in copies]
    found = run_program(program, models, samples, random.Random(0).choice, width)
    assert found == pytest.approx(wanted, 1e-12)
    assert worst_error(model.stages, expected.stages) < 1e-10
    summed = copy.deepcopy(model.encoders)
    for layer, *others in zip(*map(flat, (summed, *copies)), strict=True):
        for total, *parts in zip(*(one.parameters() for one in (layer, *others)), strict=True):
            grads = [p.grad for p in parts if p.grad is not None]
            total.grad = sum(grads[1:], grads[0]) if grads else None
    for ours, theirs in zip(summed, expected.encoders, strict=True):
        assert worst_error(ours, theirs) < 1e-10


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize(("width", "layers"), [(1, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_gradients_are_those_of_one_process(name, width, layers, frozen) -> None:
    if width * layers == 1 and frozen == "encoder but its last layer":
        frozen = "nothing"
    compare(encoded(name, 4, 8, width=width, layers=(layers,)), width, (layers,), frozen)


@pytest.mark.parametrize("frozen", ["nothing", "encoder", "second encoder"])
@pytest.mark.parametrize(("width", "layers"), [(1, (1, 1)), (2, (1, 2)), (4, (2, 1))])
@pytest.mark.parametrize("name", ["1f1b", "zbv"])
def test_gradients_of_two_encoders_are_those_of_one_process(name, width, layers, frozen) -> None:
    compare(encoded(name, 4, 8, width=width, layers=layers), width, layers, frozen)


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zb-h2", "zbv", "v-half", "dualpipev"])
def test_every_schedule_runs_encoders(name) -> None:
    compare(encoded(name, 2, 4, width=2, layers=(2,)), 2, (2,))


@cache
def filled(stages: int) -> Program:
    """The program of the paper's model A as `schedule fill` writes it."""
    setup = case_setup("A")
    host = host_step(setup)
    plan = EncoderPlan(stages=stages, tensor=8)
    made = fill_program(host, fill_bubbles(plan_problem(setup, plan, host)))
    return parse_program(str(made))


@pytest.mark.parametrize("frozen", ["nothing", "encoder"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_filled_schedules_run(stages, frozen) -> None:
    program = filled(stages)
    layers = len({p.kind for p in program.ranks[0] if p.kind.startswith("EF")})
    compare(program, stages, (layers,), frozen)
